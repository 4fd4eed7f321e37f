"""Watches a campaign that is not in this home's store: as a visitor with a key of its own, and a token derived from this home's rights.

So the scheduler process of this home, if one runs, is not disturbed, and nothing changes at any worker.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import trio

from protocol.errors import CampaignError
from protocol.messages.work import WORK, LiveLease
from protocol.words import ProtocolId
from scheduler.adoption.adopt import Adoption, tally
from scheduler.adoption.recovery import Recovery, RecoveryScan
from scheduler.adoption.token import passed_on
from scheduler.run.credentials import CredentialPresenter
from swarm.join.ephemeral import GateVisitor, open_ephemeral_node
from swarm.net.identity import Identity
from swarm.net.links import Links
from swarm.pools.membership import Credential

VISIT_S: Final = 900.0
"""Lifetime of the visitor's tokens in seconds; a longer visit makes new tokens."""
LOOK_S: Final = 1.0
FIND_EVERY: Final = 5
QUIET_S: Final = 20.0
"""If nothing of the campaign was live for this many seconds, it is over, or waits for its scheduler."""


@dataclass(frozen=True, slots=True)
class CurrentLeader:
    """The scheduler on whose behalf we look. `held`: credentials that `key` can present; `own`: whether workers believe `key` by itself."""

    key: Identity
    owner: str
    held: Sequence[Credential]
    own: bool


@asynccontextmanager
async def visiting(gates: Sequence[str], campaign: str, leader: CurrentLeader) -> AsyncIterator[RecoveryScan]:
    """Join the swarm as a visitor with rights to one campaign. Raises like `open_ephemeral_node`."""
    visitor = Identity.fresh()

    def tokens() -> Sequence[Credential]:
        now = time.time()
        handed = passed_on(
            leader.key, leader.held, visitor.peer_id, campaign, own=leader.own, lasts_s=VISIT_S, now=now
        )
        return [
            Credential(issuer=each.issuer, token=each.token, expires=now + VISIT_S, campaign=campaign)
            for each in handed
        ]

    presenter = CredentialPresenter(tokens, time.time)
    async with open_ephemeral_node(gates, visitor) as (network, index, nursery):
        links = Links(network, ProtocolId.WORK, WORK, nursery)
        announce = GateVisitor(network, leader.key).announce
        yield RecoveryScan(network, index, links, presenter.introduce, campaign, announce)


@dataclass(frozen=True, slots=True)
class RemoteView:
    """The state of the campaign, as far as its workers report it."""

    adoption: Adoption
    live: tuple[tuple[str, LiveLease], ...]
    """(device, lease) of running and queued leases."""

    @property
    def is_complete(self) -> bool:
        """Whether every task has run."""
        return self.adoption.finished == self.adoption.tasks

    def line(self) -> str:
        """One line about the campaign, for people."""
        runs = [
            f"{device} {lease.task.rpartition('/')[2]}: {_phase(lease)}"
            for device, lease in self.live
            if not lease.queued
        ]
        shown = ", ".join(runs[:6]) + (f" and {len(runs) - 6} more" if len(runs) > 6 else "")
        return self.adoption.line() + (f" ({shown})" if shown else "")

    def json(self) -> dict[str, Any]:
        """The state as JSON values, for programs."""
        counts = ("campaign", "name", "tasks", "running", "waiting", "finished", "to_do")
        live = [
            {
                "task": lease.task,
                "attempt": lease.attempt,
                "device": device,
                "phase": str(lease.phase) if lease.phase is not None else None,
                "queued": lease.queued,
            }
            for device, lease in self.live
        ]
        return {
            **{name: getattr(self.adoption, name) for name in counts},
            "live": live,
            "silent": dict(self.adoption.silent),
        }


def _phase(lease: LiveLease) -> str:
    if lease.phase is None:
        return "starting"
    return f"{lease.phase} {lease.done}/{lease.total}" if lease.total else str(lease.phase)


async def look_on(
    scan: RecoveryScan,
    owner: str,
    show: Callable[[RemoteView], None],
    *,
    pause: Callable[[float], Awaitable[None]] = trio.sleep,
) -> RemoteView:
    """Look every second and `show` changes, until all tasks have run, or nothing was live for a while. Returns the last view.

    Raises `CampaignError` when no worker knows the campaign.
    """
    recovery, _, opened = await scan.recover(owner)
    quiet, looks, last = 0.0, 0, ""
    while True:
        adoption = tally(opened.manifest, opened.tasks, recovery.places(), recovery.silent)
        view = RemoteView(adoption, _live(recovery))
        if view.line() != last:
            last = view.line()
            show(view)
        quiet = 0.0 if view.live else quiet + LOOK_S
        if view.is_complete or quiet >= QUIET_S:
            return view
        await pause(LOOK_S)
        looks += 1
        if looks % FIND_EVERY == 0:
            await scan.find()
        before, recovery = recovery, Recovery()
        await scan.look(tuple(scan.adverts), recovery)
        if not recovery.reports and not before.reports:
            raise CampaignError("none of the campaign's devices answers any more")


def _live(recovery: Recovery) -> tuple[tuple[str, LiveLease], ...]:
    """The running and queued leases, each with its device's name: running leases first, then by device and task."""
    live = (
        (report.advert.name, lease)
        for report in recovery.reports.values()
        for lease in report.leases
        if not lease.reporting and not lease.settled
    )
    return tuple(sorted(live, key=lambda item: (item[1].queued, item[0], item[1].task)))
