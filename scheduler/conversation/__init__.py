"""What a scheduler says to its workers, when, and how it handles their answers; without I/O, clock or event loop."""
