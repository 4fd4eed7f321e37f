"""What a campaign would do and why it does not: asks the live swarm, changes nothing."""
