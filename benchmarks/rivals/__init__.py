"""Other libraries at the same problems: one file each, one function ``fit(X, y, variance, tol)`` each."""
