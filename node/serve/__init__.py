"""The worker process: links, request handlers, delivery of results, the owner's commands."""
