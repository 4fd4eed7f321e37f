"""One attempt: fetch the model, wait, launch, record."""
