"""The timed loop in C, and onnxruntime's C API."""
