"""The endpoints of /api/v1, one module for each subject."""
