"""ExecuTorch programs (.pte)."""
