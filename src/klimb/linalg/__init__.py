"""Linear algebra that a solver needs: matrices that multiply, factorised precisions, Krylov methods, variances."""
