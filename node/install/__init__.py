"""The service that starts this home's worker or server after a reboot."""
