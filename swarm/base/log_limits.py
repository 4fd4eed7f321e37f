"""Limits on the log lines that a peer may cause: lines of one kind by one peer, and lines of one kind in total. For strangers also: lines
of all kinds by one network, and by all strangers. Lines above the limits are counted.

Pure: the time is an argument. `swarm.base.logs` applies it to every line of a process.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Final, NamedTuple


class LineRate(NamedTuple):
    """`burst` lines at once, then `per_s` lines per second."""

    burst: int
    per_s: float


class LineLimits(NamedTuple):
    peer: LineRate
    """Lines of one kind by one peer."""
    event: LineRate
    """Lines of one kind in total."""


TROUBLE: Final = LineLimits(peer=LineRate(5, 0.1), event=LineRate(60, 1.0))
"""Warnings, errors and refusals."""
REFUSED: Final = ".refused"
"""The ending of line kinds that say that a peer may not do something, which anybody can cause."""
NEWS: Final = LineLimits(peer=LineRate(100, 2.0), event=LineRate(1000, 20.0))
"""Lower levels, for lines that name a peer."""
STRANGERS: Final = LineLimits(peer=LineRate(3, 1 / 60), event=LineRate(10, 1 / 30))
"""Lines by peers that this node does not know."""
STRANGERS_NETWORK: Final = LineRate(10, 1 / 30)
"""Lines of all kinds by strangers of one network."""
STRANGERS_IN_ALL: Final = LineRate(30, 1 / 10)
"""Lines of all kinds by all strangers."""
REPORT_S: Final = 60.0
"""Between two lines that say how many were left out."""
MAX_KEPT: Final = 4096
"""Pairs of kind and peer remembered; the one quiet for longest is forgotten first."""


@dataclass(slots=True)
class LineLimiter:
    """Decides for each line whether it is written."""

    left_out: Counter[str] = field(default_factory=Counter)
    """Lines left out since the last report, by kind."""
    _tokens: OrderedDict[tuple[str, str], tuple[float, float]] = field(default_factory=OrderedDict)
    """Kind and peer (empty: all) → lines left, and as of when."""
    _reported: float | None = None

    def admits(
        self, event: str, peer: str, trouble: bool, now: float, stranger_from: str | None = None
    ) -> bool:
        """Whether a line is written. `peer`: empty for none; lines without a peer are limited only if they are trouble. `stranger_from`:
        the network of a peer that is a stranger, empty if it has none; None: the peer is not a stranger."""
        if not (peer or trouble):
            return True
        limits = TROUBLE if trouble or event.endswith(REFUSED) else NEWS
        wanted = [((event, ""), limits.event), *([((event, peer), limits.peer)] if peer else [])]
        if peer and stranger_from is not None:
            # all under separate keys, so that strangers use up nothing that others need
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
        """How many lines were left out, by kind, once a report is due; empty if there is nothing to report."""
        if not self.left_out or (self._reported is not None and now - self._reported < REPORT_S):
            return {}
        self._reported = now
        counts = dict(self.left_out.most_common())
        self.left_out.clear()
        return counts

    def _left(self, key: tuple[str, str], rate: LineRate, now: float) -> float:
        tokens, since = self._tokens.get(key, (float(rate.burst), now))
        return min(float(rate.burst), tokens + max(0.0, now - since) * rate.per_s)
