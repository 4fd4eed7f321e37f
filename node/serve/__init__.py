"""The worker process: links, request handlers, delivery of results, owner's commands."""
