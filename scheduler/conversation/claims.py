"""Who leads a campaign: the proofs that the conversation needs; see `scheduler.run.epochs`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

from protocol.messages.work import Denied

ADOPTION_EPOCH_STEP: Final = 2**32
"""Distance between a scheduler's epoch and an adopting home's: no restart and no restored backup of one home raises its epoch this far."""


class RivalKind(Enum):
    """Who leads a campaign under a higher epoch."""

    ADOPTER = auto()
    """Another home, which adopted the campaign."""
    FORMER = auto()
    """Nobody any more, as far as is known: this home led it, after the backup or snapshot from which it was restored."""
    COPY = auto()
    """A running copy of this home."""


@dataclass(frozen=True, slots=True)
class Rival:
    """A proven higher epoch, and the kind of scheduler that leads under it."""

    kind: RivalKind
    epoch: int


class Claims(Protocol):
    """Proofs of which scheduler leads a campaign."""

    def proof(self, campaign: str) -> bytes | None:
        """Proof that this scheduler leads `campaign`, if there is one."""
        ...

    def accepted(self, campaign: str, peer: str, epoch: int) -> None:
        """A worker accepted this scheduler as the campaign's leader."""
        ...

    def rival(self, campaign: str, peer: str, denied: Denied) -> Rival | None:
        """Who leads `campaign` under a higher epoch, if the worker's denial proves such an epoch."""
        ...

    def lead_above_rival(self, campaign: str, rival: Rival) -> int:
        """Lead `campaign` under a new epoch, above the rival's; returns the new epoch."""
        ...

    def forget(self, campaign: str) -> None:
        """The campaign ended a while ago: drop its proofs."""
        ...
