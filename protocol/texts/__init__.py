"""Articles with reference summaries, which schedulers send to devices and score by. Standard library only."""
