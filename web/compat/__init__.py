"""The predecessor's HTTP API below /api, with its paths and JSON shapes, so that its clients work unchanged."""
