"""Admission to a gate's services."""
