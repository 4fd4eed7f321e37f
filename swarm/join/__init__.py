"""How a role joins the network and stays on it."""
