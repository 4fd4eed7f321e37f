"""The time limits of a launch, by the monotonic clock."""

from __future__ import annotations

import math
import time

from drivers.contract.base import Limits


class LaunchDeadlines:
    """`load_s` until the load is over, then the rest of `run_s`, which all launches share."""

    def __init__(self, load_s: float, left_s: float) -> None:
        self._load_s, self._left_s = load_s, left_s
        self._loaded: float | None = None
        self._until = time.monotonic() + load_s
        self._turn_s = self._turn_until = math.inf

    def deadline(self) -> float:
        return min(self._until, self._turn_until)

    def loaded(self) -> None:
        if self._loaded is None:
            self._loaded = time.monotonic()
            self._until = self._loaded + self._left_s

    def load_another(self) -> None:
        """Another child of the same launch starts; its loading time does not count towards `run_s`."""
        self._left_s, self._loaded = self.left_s(), None
        self._until = time.monotonic() + self._load_s

    def begin_turn(self, within_s: float) -> None:
        """A child has received the token."""
        self._turn_s, self._turn_until = within_s, time.monotonic() + within_s

    def end_turn(self) -> None:
        self._turn_s = self._turn_until = math.inf

    def left_s(self) -> float:
        """Seconds left for further launches."""
        return self._left_s if self._loaded is None else max(0.0, self._until - time.monotonic())

    def exceeded(self, limits: Limits) -> str:
        if self._loaded is None:
            return f"still loading after its limit of {limits.load_s:g} s"
        if self._turn_until < self._until:
            return f"it did not end its turn within {self._turn_s:.3g} s"
        return f"still running after its limit of {limits.run_s:g} s"
