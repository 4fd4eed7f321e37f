"""The code shared by drivers that load the model into their own process."""
