"""A gate's status: counts, metrics, the operator's view."""
