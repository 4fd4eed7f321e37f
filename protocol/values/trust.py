"""Why a submitter believes a worker: the submitter's own judgement, which no message carries."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final


class TrustKind(StrEnum):
    """How a submitter knows a worker's key."""

    OWN = "own"
    """A worker of the submitter's home, or a member of that home's own pool."""
    POOL = "pool"
    """A worker in the newest manifest of another pool that the submitter is in."""
    LISTED = "listed"
    """Its key was named by the submitter: with `sark-node trust`, or in the campaign file."""
    STRANGER = "stranger"
    """Known only by what it says of itself."""


@dataclass(frozen=True, slots=True)
class Trust:
    """Why a submitter believes one worker."""

    kind: TrustKind
    pool: str = ""
    """The pool's name; only with `POOL`."""
    root: str = ""
    """Who answers for the worker: workers with one root can agree on a lie, so a quorum counts them once. The scheduler's peer id, a
    pool's id, the worker's own peer id, or a stranger's public network."""
    refuted: bool = False
    """A stranger that has lied to this home: it gets no task of it."""
    confirmed: int = 0
    """Results of a stranger that this home found right."""

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
    """Whom a campaign uses: the submitter's own devices, those of its pools and the listed ones; and whom it names itself."""

    anyone: bool = False
    """Strangers too."""
    named: frozenset[str] = frozenset()
    """Peer ids that are listed for this campaign."""

    def naming(self, peers: Collection[str]) -> TrustScope:
        """The same for tasks that name these peers."""
        return replace(self, named=self.named | frozenset(peers)) if peers else self

    def judge(self, peer: str, trust: Trust) -> Trust:
        """The submitter's trust in a worker, as this campaign has it: whom it names is listed."""
        return Trust(TrustKind.LISTED, root=peer) if trust.stranger and peer in self.named else trust

    def admits(self, peer: str, trust: Trust) -> bool:
        """Whether this worker may have its tasks and its models."""
        return (self.anyone and not trust.refuted) or not trust.stranger or peer in self.named


MINE: Final = TrustScope()
"""What a campaign has that says nothing of trust."""
