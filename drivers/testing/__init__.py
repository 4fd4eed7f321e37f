"""For driver authors: a fake driver and the conformance suite."""
