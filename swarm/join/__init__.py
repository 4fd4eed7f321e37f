"""How a role comes onto the network and stays there."""
