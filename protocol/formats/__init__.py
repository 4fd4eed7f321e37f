"""What both peers and drivers must agree on: model file formats, pre-run and post-run steps, phases. Standard library only."""
