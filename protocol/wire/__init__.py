"""Bytes: the codec, the base types of messages, transition tables."""
