"""One machine: `bench` without a network, `demo` with a network of its own."""
