"""How well a model answers: tasks provide examples, metrics score answers; some built in, others from installed packages."""
