"""The worker's side of the work conversation without any I/O: messages, timers and disk results in, commands out. Pure."""
