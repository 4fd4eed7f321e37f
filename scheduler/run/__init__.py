"""The running scheduler: carries out the core's commands over links and on disk."""
