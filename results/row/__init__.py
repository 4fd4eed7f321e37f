"""One signed record becomes figures, one row and one verdict."""
