"""The worker's side of the work conversation without I/O: messages, timers and disk results in, commands out. Pure."""
