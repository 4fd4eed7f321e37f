"""The live links with schedulers, and which link carries which messages. Pure.

Two machines may have one key, as when a campaign was adopted with the key while its old scheduler was still running. Messages about a
campaign go over a link that has mentioned the campaign under its newest epoch. Only if there is none do they go over a link that has not
mentioned the campaign. They never go over a link that has mentioned it under an older epoch, or was refused for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from node.capacity.allocations import CampaignKey
from node.conversation.commands import SchedulerLink

MAX_CAMPAIGNS: Final = 1_024
"""Campaigns whose epochs are remembered for one link."""


class LinkTable:
    """Links by peer, newest last."""

    def __init__(self, newest_epoch: Callable[[str, str], int]) -> None:
        """`newest_epoch`: the newest epoch known of (principal, campaign)."""
        self._newest_epoch = newest_epoch
        self._links: dict[str, list[SchedulerLink]] = {}
        self._epochs: WeakKeyDictionary[SchedulerLink, dict[str, int]] = WeakKeyDictionary()

    def add(self, link: SchedulerLink) -> None:
        self._links.setdefault(link.peer, []).append(link)

    def remove(self, link: SchedulerLink) -> bool:
        """Remove `link`. Returns False if it is not in the table."""
        links = self._links.get(link.peer, [])
        if link not in links:
            return False
        links.remove(link)
        if not links:
            del self._links[link.peer]
        return True

    def peers(self) -> tuple[str, ...]:
        return tuple(self._links)

    def of(self, peer: str) -> tuple[SchedulerLink, ...]:
        return tuple(self._links.get(peer, ()))

    def epochs(self, link: SchedulerLink) -> dict[str, int]:
        """Campaign → the highest epoch that the link has used, for requests that name leases without an epoch."""
        return self._epochs.setdefault(link, {})

    def set_epoch(self, link: SchedulerLink, campaign: str, epoch: int) -> None:
        """The link mentioned the campaign under this epoch."""
        epochs = self.epochs(link)
        epochs[campaign] = max(epoch, epochs.pop(campaign, 0))
        while len(epochs) > MAX_CAMPAIGNS:
            del epochs[next(iter(epochs))]

    def speaks_for(self, link: SchedulerLink, about: CampaignKey) -> bool | None:
        """Whether `link` has mentioned a campaign under its newest epoch; False: under an older one; None: not mentioned it yet."""
        epoch = self.epochs(link).get(about[1])
        return None if epoch is None else epoch >= self._newest_epoch(*about)

    def best(self, peer: str, about: CampaignKey) -> SchedulerLink | None:
        """The link to `peer` for messages about a campaign: the newest of those that suit the campaign best."""
        silent = None
        for link in reversed(self.of(peer)):
            speaks = self.speaks_for(link, about)
            if speaks:
                return link
            if speaks is None:
                silent = silent or link
        return silent

    def may_carry(self, link: SchedulerLink, about: CampaignKey) -> bool:
        """Whether messages about a campaign may go over `link` now."""
        speaks = self.speaks_for(link, about)
        if speaks is None:
            return not any(self.speaks_for(other, about) for other in self.of(link.peer))
        return speaks
