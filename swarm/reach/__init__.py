"""Whether this node can be dialled, and ways to make it so."""
