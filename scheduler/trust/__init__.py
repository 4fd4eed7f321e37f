"""Why this submitter trusts a worker: its own devices, its pools, and the keys that it listed."""
