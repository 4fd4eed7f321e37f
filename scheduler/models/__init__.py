"""Model files on the submitting machine: finding, describing and downloading them, and keeping them for the workers."""
