"""Compares several results: pairs, comparisons, matrices, regressions, verification."""
