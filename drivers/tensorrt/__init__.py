"""ONNX models by NVIDIA's TensorRT. Written from TensorRT's documentation; it has not yet run on hardware."""
