"""From a campaign to its tasks and to the devices that may run them."""
