"""This device's stored models, results and campaign manifests."""
