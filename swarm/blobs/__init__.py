"""Files by hash, from one source or from many."""
