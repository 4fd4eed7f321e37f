"""How a model is loaded, run and measured. Knows no peer, no campaign, no trio."""
