"""The commands of the person who submits."""
