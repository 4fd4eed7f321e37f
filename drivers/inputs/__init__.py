"""Made inputs for any model."""
