"""Several results beside each other: pairs, comparisons, matrices, regressions, verification."""
