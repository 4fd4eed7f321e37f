"""Whom the schedulers of the tests trust: the one place where a test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from scheduler.trust.book import FixedTrust, TrustBook
from swarm.net.identity import Identity

ME: Final = Identity.from_seed("somebody who trusts").peer_id


class OwnWorkers:
    """A `TrustSource`: the workers that `peers` gives are the submitter's own."""

    def __init__(self, peers: Callable[[], Iterable[str]]) -> None:
        self._peers = peers
        self._book = TrustBook(ME)

    def book(self) -> TrustBook:
        own = frozenset(self._peers())
        if own != self._book.own:
            self._book = TrustBook(ME, own)
        return self._book


def trusting(*peers: str) -> FixedTrust:
    """A `TrustSource`: these workers are the submitter's own, and all others are strangers."""
    return FixedTrust(TrustBook(ME, frozenset(peers)))
