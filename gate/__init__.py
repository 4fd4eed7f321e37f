"""The way in: bootstrap routing and index shards for a swarm."""
