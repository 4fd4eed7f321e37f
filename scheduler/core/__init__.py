"""The scheduler's state and decisions, pure: events in, commands out."""
