"""Whom a gate serves: its policy, its members, its tickets."""
