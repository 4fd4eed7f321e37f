"""Words for campaigns that another scheduler carries on; their tasks end here with these words."""

from __future__ import annotations

from typing import Final

ELSEWHERE: Final = "carried on elsewhere (adopted)"
COPIED: Final = "led by a copy of this home: the same key runs it elsewhere"
