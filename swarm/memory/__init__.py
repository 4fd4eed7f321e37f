"""The network interface within one process, for tests and simulations."""
