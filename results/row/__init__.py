"""Turns one signed record into figures, one row and one verdict."""
