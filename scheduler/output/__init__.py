"""One format for `--json` and HTTP, and the same information for terminals."""
