"""What is said of campaigns that another scheduler carries on; with these words their tasks end here."""

from __future__ import annotations

from typing import Final

ELSEWHERE: Final = "carried on elsewhere (adopted)"
COPIED: Final = "led by a copy of this home: the same key runs it elsewhere"
