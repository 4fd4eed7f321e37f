"""One device: its profile, its leases, its cache, its runs."""
