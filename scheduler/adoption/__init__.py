"""Carries on a campaign from another machine."""
