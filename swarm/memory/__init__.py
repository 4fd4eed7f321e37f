"""The network's face within one process, for tests and simulations."""
