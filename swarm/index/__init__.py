"""The index: a DHT that says which node has what, by the nodes' adverts."""
