"""The commands for gates and pools."""
