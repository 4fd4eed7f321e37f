"""The campaign file: reading it, checking it with line numbers, and writing it back."""
