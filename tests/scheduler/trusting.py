"""Whom the schedulers of the tests trust: the only place where tests set trust."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from scheduler.trust.book import TrustBook
from swarm.net.identity import Identity

ME: Final = Identity.from_seed("somebody who trusts").peer_id


@dataclass(frozen=True, slots=True)
class FixedTrust:
    """A `TrustSource` that does not change."""

    _book: TrustBook

    def book(self) -> TrustBook:
        return self._book


class OwnWorkers:
    """A `TrustSource`: the workers that `peers` returns are the submitter's own. `signed`: as in the book."""

    def __init__(
        self,
        peers: Callable[[], Iterable[str]],
        signed: Mapping[str, Mapping[str, frozenset[str]]] | None = None,
    ) -> None:
        self._peers, self._signed = peers, {} if signed is None else signed
        self._book = TrustBook(ME)

    def book(self) -> TrustBook:
        own = frozenset(self._peers())
        if own != self._book.own:
            self._book = TrustBook(ME, own, signed=self._signed)
        return self._book


def trusting(*peers: str) -> FixedTrust:
    """A `TrustSource`: these workers are the submitter's own, and all others are strangers."""
    return FixedTrust(TrustBook(ME, frozenset(peers)))
