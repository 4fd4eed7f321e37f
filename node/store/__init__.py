"""What this device keeps: models, results, campaign manifests."""
