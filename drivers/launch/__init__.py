"""Fresh processes under limits."""
