"""Membership: tokens, tickets, manifests, and the two sides that exchange them."""
