"""Who has what: the DHT of adverts."""
