"""py-libp2p behind our rules."""
