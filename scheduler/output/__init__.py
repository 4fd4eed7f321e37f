"""One shape for `--json` and HTTP, and the same for terminals."""
