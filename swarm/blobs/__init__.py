"""Files by hash, from one source or several."""
