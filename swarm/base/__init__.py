"""What every role's process needs: folders, settings, logs, the live screen, text, units, locks and durable writes."""
