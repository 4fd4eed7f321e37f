"""Torch models."""
