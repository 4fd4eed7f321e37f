"""What drivers share that load the model into their own process."""
