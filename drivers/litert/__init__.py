"""LiteRT models (.tflite)."""
