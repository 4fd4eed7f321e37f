"""Submits, retries and cancels campaigns, and starts the background scheduler."""
