"""Who may do what on this device."""
