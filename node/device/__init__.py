"""What this device is: hardware probe, calibration, device lock."""
