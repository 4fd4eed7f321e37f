"""The running scheduler: carries the core's commands out over links and disk."""
