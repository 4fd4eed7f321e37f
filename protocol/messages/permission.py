"""The right that each call to a worker needs, and whether a caller has it. Pure.

The worker decides where a permission comes from (the owner's key, a list, a token); this module checks every call against it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from protocol.messages import work
from protocol.messages.forget import Forget
from protocol.wire.base import Message
from protocol.words import Reason, Right

NEEDS: Final[dict[type[Message], frozenset[Right]]] = {
    work.Probe: frozenset({Right.SUBMIT, Right.STATUS}),
    work.Commit: frozenset({Right.SUBMIT}),
    work.Renew: frozenset({Right.SUBMIT}),
    work.Cancel: frozenset({Right.SUBMIT}),
    work.Release: frozenset({Right.SUBMIT}),
    work.AdoptRequest: frozenset({Right.SUBMIT}),
    work.ListLeases: frozenset({Right.SUBMIT, Right.STATUS}),
    work.Control: frozenset({Right.CONTROL}),
    work.StatusRequest: frozenset({Right.STATUS, Right.CONTROL}),
    Forget: frozenset({Right.SUBMIT}),
}
"""Any one of these rights is enough for the call."""
ALL: Final = frozenset(Right)


@dataclass(frozen=True, slots=True)
class CallPermission:
    """What one peer may do at this worker now."""

    principal: str
    """The peer id on whose behalf it acts: its own, or that of a peer that delegated to it."""
    rights: frozenset[Right]
    owner: bool = False
    """The device's owner, or somebody acting for the owner."""
    stranger: bool = False
    """Served only because the worker serves anybody: no owner, list or pool names it."""
    priority: int = 100
    """The highest effective priority."""
    slots: int | None = None
    """Running and queued leases at a time; None: no limit."""
    campaigns: frozenset[str] | None = None
    """The only campaigns that it may name; None: any."""
    team: str = ""
    """The team the peer belongs to, for display."""
    backing_token: str = field(default="", compare=False)
    """The token behind this permission; empty: none."""

    def may(self, verb: Message) -> work.Denied | None:
        """None if the call is permitted, otherwise the refusal. A call missing from `NEEDS` is refused to everybody."""
        if not NEEDS.get(type(verb), frozenset()) & self.rights:
            name = type(verb).__name__.lower()
            return work.Denied(reason=Reason.NOT_ALLOWED, detail=f"your permission does not cover {name}")
        campaign = getattr(verb, "campaign", None)
        if campaign is not None and (no := self.speaks_of(campaign)):
            return no
        return None

    def speaks_of(self, campaign: str) -> work.Denied | None:
        """None if the permission covers this campaign, otherwise the refusal."""
        if self.campaigns is None or campaign in self.campaigns:
            return None
        return work.Denied(
            reason=Reason.NOT_ALLOWED, detail=f"your permission is for other campaigns than {campaign}"
        )
