"""The commands of users who submit campaigns, and `bench`."""
