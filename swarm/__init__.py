"""The network every role stands on: identity, links that speak messages, the index, file transfer."""
