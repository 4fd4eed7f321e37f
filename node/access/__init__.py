"""Permissions of peers on this device."""
