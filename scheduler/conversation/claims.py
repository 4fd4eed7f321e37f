"""Who leads a campaign: what the conversation asks of proofs; see `scheduler.run.epochs`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

from protocol.messages.work import Denied

LEAP: Final = 2**32
"""Distance between a scheduler's epoch and an adopting home's: no restart and no restored backup of one home gets this far."""


class RivalKind(Enum):
    """Who leads a campaign under a higher epoch."""

    ADOPTER = auto()
    """A home that adopted it."""
    FORMER = auto()
    """Nobody any more, as far as is known: this home did, after the backup or snapshot that it was restored from."""
    COPY = auto()
    """A copy of this home, which runs."""


@dataclass(frozen=True, slots=True)
class Rival:
    """A proven higher epoch, and which kind of scheduler leads under it."""

    kind: RivalKind
    epoch: int


class Claims(Protocol):
    """What proves which scheduler leads a campaign."""

    def proof(self, campaign: str) -> bytes | None:
        """Proof that this scheduler leads `campaign`, if there is one."""
        ...

    def accepted(self, campaign: str, peer: str, epoch: int) -> None:
        """A worker took this scheduler for its leader."""
        ...

    def rival(self, campaign: str, peer: str, denied: Denied) -> Rival | None:
        """Who leads `campaign` under a higher epoch, if the worker's denial proves that somebody does."""
        ...

    def outdo(self, campaign: str, rival: Rival) -> int:
        """Lead `campaign` under a new epoch, above the rival's; gives the new epoch."""
        ...

    def forget(self, campaign: str) -> None:
        """The campaign ended a while ago: drop its proofs."""
        ...
