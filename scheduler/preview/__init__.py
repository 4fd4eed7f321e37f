"""What a campaign would do, and why it does not: queries the live swarm, changes nothing."""
