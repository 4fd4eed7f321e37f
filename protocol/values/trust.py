"""Why a submitter believes a worker: the submitter's own judgement, which no message carries."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final


class TrustKind(StrEnum):
    """How a submitter knows a worker's key."""

    OWN = "own"
    """A worker of the submitter's home, or a member of its home pool."""
    POOL = "pool"
    """A worker in the newest manifest of another pool that the submitter is in."""
    LISTED = "listed"
    """The submitter named its key: with `sark-node trust`, or in the campaign file."""
    STRANGER = "stranger"
    """Known only by its own claims."""


@dataclass(frozen=True, slots=True)
class Trust:
    """Why a submitter believes one worker."""

    kind: TrustKind
    pool: str = ""
    """The pool's name; only with `POOL`."""
    root: str = ""
    """The trust root: workers with one root can agree on a lie, so a quorum counts them once. It is the scheduler's peer id, a pool's id,
    the worker's own peer id, or a stranger's public network."""
    refuted: bool = False
    """A stranger that has lied to this home, which gives it no tasks."""
    confirmed: int = 0
    """How many of a stranger's results this home found correct."""

    @property
    def text(self) -> str:
        """As rows and tables show it: `own`, `pool lab`, `listed` or `stranger`."""
        return f"pool {self.pool}" if self.kind is TrustKind.POOL else str(self.kind)

    @property
    def stranger(self) -> bool:
        return self.kind is TrustKind.STRANGER


OWN: Final = Trust(TrustKind.OWN)
STRANGER: Final = Trust(TrustKind.STRANGER)


@dataclass(frozen=True, slots=True)
class TrustScope:
    """Which workers a campaign uses: the submitter's own devices, those of its pools, listed ones, and those that the campaign names."""

    anyone: bool = False
    """Strangers too."""
    named: frozenset[str] = frozenset()
    """Peer ids that are listed for this campaign."""

    def naming(self, peers: Collection[str]) -> TrustScope:
        """This scope for tasks that also name these peers."""
        return replace(self, named=self.named | frozenset(peers)) if peers else self

    def judge(self, peer: str, trust: Trust) -> Trust:
        """The submitter's trust in a worker within this campaign: peers it names are listed."""
        return Trust(TrustKind.LISTED, root=peer) if trust.stranger and peer in self.named else trust

    def admits(self, peer: str, trust: Trust) -> bool:
        """Whether this worker may have the campaign's tasks and models."""
        return (self.anyone and not trust.refuted) or not trust.stranger or peer in self.named


MINE: Final = TrustScope()
"""The scope of a campaign that says nothing about trust."""
