"""The face of the network: identities, addresses, links that speak messages."""
