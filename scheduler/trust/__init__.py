"""Why this submitter believes a worker: its own devices, its pools, the keys it listed."""
