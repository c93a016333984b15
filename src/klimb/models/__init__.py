"""Models above the engine: search and average over hyperparameters, fits, predictions, files, doors."""
