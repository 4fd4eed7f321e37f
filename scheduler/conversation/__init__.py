"""What a scheduler says to its workers, when, and what their answers mean; without I/O, clock or event loop."""
