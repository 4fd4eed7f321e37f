"""Models run by OpenVINO."""
