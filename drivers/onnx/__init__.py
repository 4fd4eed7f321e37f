"""ONNX models by onnxruntime."""
