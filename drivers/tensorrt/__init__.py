"""ONNX models by NVIDIA's TensorRT. It has never run on hardware here: it was written from TensorRT's documentation."""
