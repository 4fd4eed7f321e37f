"""The format of a worker's setting `gpus`. `node.device.gpu_units` applies it."""

from __future__ import annotations

import re
from typing import Final

ONE: Final = "one"
EACH: Final = "each"
_LIST: Final = re.compile(r"\d{1,2}(,\d{1,2})*")


def read_gpus_setting(text: str) -> tuple[int, ...] | None:
    """The numbers of a list; None: `one` or `each`. Raises `ValueError` with the correct formats."""
    if text in (ONE, EACH):
        return None
    numbers = text.replace(" ", "")
    if not _LIST.fullmatch(numbers):
        raise ValueError("write one, each, or the numbers that sark-node info shows: 0,2")
    listed = tuple(map(int, numbers.split(",")))
    if len(set(listed)) < len(listed):
        raise ValueError(f"a GPU is listed twice: {text}")
    return listed
