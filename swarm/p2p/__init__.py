"""py-libp2p, hardened and limited by our rules."""
