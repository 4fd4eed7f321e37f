"""Articles with reference summaries, which workers send to servers and schedulers score by. Standard library only."""
