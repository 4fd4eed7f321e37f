"""The values that messages carry: tasks, records, leases, requirements."""
