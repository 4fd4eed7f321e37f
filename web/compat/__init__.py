"""The predecessor's HTTP API below /api, with its paths and JSON shapes: clients that only know it work unchanged."""
