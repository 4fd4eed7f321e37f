"""The rights that a child process gives up before it reads a model."""
