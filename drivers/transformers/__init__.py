"""Transformers models."""
