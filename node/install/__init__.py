"""The service that joins again after a reboot."""
