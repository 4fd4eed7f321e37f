"""How many log lines a peer may cause: lines of one kind by one peer, and lines of one kind in all; of strangers also all lines of one
network, and of all of them together. Those above are counted.

Pure: the time is an argument. `swarm.base.logs` puts it before every line of a process.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Final, NamedTuple


class LineRate(NamedTuple):
    """`burst` lines at once, then `per_s` lines a second."""

    burst: int
    per_s: float


class LineLimits(NamedTuple):
    peer: LineRate
    """Lines of one kind by one peer."""
    event: LineRate
    """Of one kind, in all."""


TROUBLE: Final = LineLimits(peer=LineRate(5, 0.1), event=LineRate(60, 1.0))
"""Warnings, errors and refusals."""
REFUSED: Final = ".refused"
"""How the kinds of lines end that say what somebody may not do, which anybody can cause."""
NEWS: Final = LineLimits(peer=LineRate(100, 2.0), event=LineRate(1000, 20.0))
"""Lower levels that name a peer."""
STRANGERS: Final = LineLimits(peer=LineRate(3, 1 / 60), event=LineRate(10, 1 / 30))
"""Of peers that this node does not know."""
STRANGERS_NETWORK: Final = LineRate(10, 1 / 30)
"""Lines of all kinds by strangers of one network."""
STRANGERS_IN_ALL: Final = LineRate(30, 1 / 10)
"""Lines of all kinds by all strangers."""
REPORT_S: Final = 60.0
"""Between two lines that say how many were left out."""
MAX_KEPT: Final = 4096
"""Pairs of kind and peer remembered; the one that was quiet the longest is forgotten first."""


@dataclass(slots=True)
class LineLimiter:
    """Decides line by line."""

    left_out: Counter[str] = field(default_factory=Counter)
    """By kind, since the last report."""
    _tokens: OrderedDict[tuple[str, str], tuple[float, float]] = field(default_factory=OrderedDict)
    """Kind and peer (empty: all) → lines left, at a time."""
    _reported: float | None = None

    def admits(
        self, event: str, peer: str, trouble: bool, now: float, stranger_from: str | None = None
    ) -> bool:
        """Whether a line is written. `peer`: empty for none; lines without one are limited only when they are trouble. `stranger_from`: the
        network of a peer that is a stranger, empty for none; None: it is not."""
        if not (peer or trouble):
            return True
        limits = TROUBLE if trouble or event.endswith(REFUSED) else NEWS
        wanted = [((event, ""), limits.event), *([((event, peer), limits.peer)] if peer else [])]
        if peer and stranger_from is not None:
            # all under keys of their own: strangers use up none of what is there for others
            wanted = [
                ((event, "strangers"), STRANGERS.event),
                ((event, peer), STRANGERS.peer),
                (("", "strangers"), STRANGERS_IN_ALL),
                *([(("", stranger_from), STRANGERS_NETWORK)] if stranger_from else []),
            ]
        left = [(key, self._left(key, rate, now)) for key, rate in wanted]
        admitted = all(tokens >= 1 for _, tokens in left)
        if not admitted:
            self.left_out[event] += 1
        for key, tokens in left:
            self._tokens[key] = (tokens - admitted, now)
            self._tokens.move_to_end(key)
        while len(self._tokens) > MAX_KEPT:
            self._tokens.popitem(last=False)
        return admitted

    def report(self, now: float) -> dict[str, int]:
        """How many lines were left out, by kind, once a report is due; empty: there is nothing to report."""
        if not self.left_out or (self._reported is not None and now - self._reported < REPORT_S):
            return {}
        self._reported = now
        counts = dict(self.left_out.most_common())
        self.left_out.clear()
        return counts

    def _left(self, key: tuple[str, str], rate: LineRate, now: float) -> float:
        tokens, since = self._tokens.get(key, (float(rate.burst), now))
        return min(float(rate.burst), tokens + max(0.0, now - since) * rate.per_s)
