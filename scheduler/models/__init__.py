"""Model files on the submitting machine: found, described, downloaded, kept for the workers."""
