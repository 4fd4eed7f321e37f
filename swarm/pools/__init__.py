"""Membership: tokens, tickets and manifests, and the two sides that exchange them."""
