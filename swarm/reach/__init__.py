"""Whether this node can be dialled, and what helps."""
