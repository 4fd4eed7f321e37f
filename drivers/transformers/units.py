"""The units of the Transformers driver: the devices on which torch computes."""

from __future__ import annotations

from typing import Final

CPU: Final = "CPU (Transformers)"
GPU: Final = "GPU (Transformers)"
UNITS: Final = (CPU, GPU)
EXTRA: Final = "python -m pip install 'sark-node[transformers]'"
