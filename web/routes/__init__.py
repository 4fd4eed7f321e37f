"""The endpoints of /api/v1."""
