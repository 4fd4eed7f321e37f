"""How a gate stands: counts, metrics, the operator's view."""
