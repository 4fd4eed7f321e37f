"""How often the intervals of each device hold. The value is cached, because it is computed over all results of the home."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import trio

from results.analysis.sittings import IntervalCoverage

READ_S: Final = 300.0


@dataclass(slots=True)
class CoverageView:
    """The cached coverage of one server. `read`: computes it, which may take seconds."""

    read: Callable[[], Awaitable[Mapping[str, IntervalCoverage]]]
    _at: float = -math.inf
    _held: Mapping[str, IntervalCoverage] = field(default_factory=dict)
    _lock: trio.Lock = field(default_factory=trio.Lock)

    async def now(self) -> Mapping[str, IntervalCoverage]:
        """The coverage by `device_identity`, at most `READ_S` old. Raises what `read` raises."""
        async with self._lock:
            if trio.current_time() - self._at >= READ_S:
                self._held = await self.read()
                self._at = trio.current_time()
            return self._held
