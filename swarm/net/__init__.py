"""What the roles see of the network: identities, addresses, and links that carry messages."""
