"""Several results compared: pairs, comparisons, matrices, regressions, verification."""
