"""This device: hardware probe, calibration, device lock."""
