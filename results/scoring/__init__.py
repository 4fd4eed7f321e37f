"""How well a model answers: tasks that bring examples, metrics that score answers; built in, and of other packages."""
