"""Campaigns under a name: versions, runs, schedules, regressions."""
