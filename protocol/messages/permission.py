"""Who may do what at a worker: the right that each verb needs, and what a caller's permission amounts to. Pure.

Where a permission comes from (the owner's own key, a list, a token) is the worker's business; every verb is checked against it here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from protocol.messages.work import (
    AdoptRequest,
    Cancel,
    Commit,
    Control,
    Denied,
    ListLeases,
    Probe,
    Release,
    Renew,
    StatusRequest,
)
from protocol.wire.base import Message
from protocol.words import Reason, Right

NEEDS: Final[dict[type[Message], frozenset[Right]]] = {
    Probe: frozenset({Right.SUBMIT, Right.STATUS}),
    Commit: frozenset({Right.SUBMIT}),
    Renew: frozenset({Right.SUBMIT}),
    Cancel: frozenset({Right.SUBMIT}),
    Release: frozenset({Right.SUBMIT}),
    AdoptRequest: frozenset({Right.SUBMIT}),
    ListLeases: frozenset({Right.SUBMIT, Right.STATUS}),
    Control: frozenset({Right.CONTROL}),
    StatusRequest: frozenset({Right.STATUS, Right.CONTROL}),
}
"""Any one of these rights is enough for the verb."""
ALL: Final = frozenset(Right)


@dataclass(frozen=True, slots=True)
class CallPermission:
    """What one peer may do at this worker now."""

    principal: str
    """Peer id on whose behalf it acts: its own, or that of who delegated to it."""
    rights: frozenset[Right]
    owner: bool = False
    """The device's owner, or somebody acting for the owner."""
    stranger: bool = False
    """Served only because anybody is: nobody that the owner knows answers for it."""
    priority: int = 100
    """The highest priority that counts."""
    slots: int | None = None
    """Places and tickets at a time; None: no limit of its own."""
    campaigns: frozenset[str] | None = None
    """The only campaigns it may speak of; None: any."""
    team: str = ""
    """For people: on whose account."""
    rests: str = field(default="", compare=False)
    """Which of the holder's tokens it rests on; empty: on none."""

    def may(self, verb: Message) -> Denied | None:
        """None when it may say that; else the refusal. A verb that is not in the table needs a right that nobody has."""
        if not NEEDS.get(type(verb), frozenset()) & self.rights:
            name = type(verb).__name__.lower()
            return Denied(reason=Reason.NOT_ALLOWED, detail=f"your permission does not cover {name}")
        campaign = getattr(verb, "campaign", None)
        if campaign is not None and (no := self.speaks_of(campaign)):
            return no
        return None

    def speaks_of(self, campaign: str) -> Denied | None:
        """None when it may speak of this campaign."""
        if self.campaigns is None or campaign in self.campaigns:
            return None
        return Denied(
            reason=Reason.NOT_ALLOWED, detail=f"your permission is for other campaigns than {campaign}"
        )
