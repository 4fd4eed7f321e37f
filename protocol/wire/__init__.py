"""Bytes: the codec, the base types of messages, and transition tables."""
