"""Named campaigns: versions, runs, schedules, regressions."""
