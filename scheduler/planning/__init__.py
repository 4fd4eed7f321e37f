"""Derives tasks from a campaign, and finds the devices that may run them."""
