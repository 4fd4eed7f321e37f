"""The campaign file: read, checked with line numbers, written back."""
