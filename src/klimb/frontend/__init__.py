"""The front door: a formula and a data frame in, a `Fit` with tables, predictions, plots and a file out."""
