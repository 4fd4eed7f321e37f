"""What every endpoint stands on: the server, its limits, authentication, errors, event streams."""
