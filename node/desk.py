"""The worker's side of the conversation on `/sark/work/1`: who may ask, is it signed, does it fit; then the ledger decides.

Every verb is checked for permission by itself. An answer never waits for a run to end, but for a cancelled one to be dead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

import structlog

from node.ledger import Ledger
from node.places import Wanted
from node.text import detail
from protocol.advert import Advert
from protocol.base import Message, brief
from protocol.errors import RemoteProtocolError
from protocol.match import match
from protocol.messages import (
    MAX_BATCH,
    Adopt,
    Adopted,
    Cancel,
    Commit,
    Denied,
    Granted,
    Probe,
    Queued,
    Quote,
    Release,
    Renew,
    ShapeQuote,
    Stopped,
)
from protocol.requirement import Requirement
from protocol.task import read_task, task_message
from protocol.words import Phase, Reason
from swarm.identity import verify
from swarm.link import Link
from swarm.network import PeerId

MAX_TOLD: Final = 8
"""Clauses that are not met, in the quote for one shape."""

log = structlog.get_logger("sark.desk")


@dataclass(frozen=True)
class Desk:
    """Answers schedulers."""

    ledger: Ledger
    advert: Callable[[], Advert]
    """This worker's own, as others see it."""
    allowed: Callable[[PeerId], bool]
    has_model: Callable[[str], bool]
    phase: Callable[[str], Phase | None]
    """Where the run of a lease stands."""
    carry_out: Callable[[], None]
    """To be called after each change of the ledger."""
    dead: Callable[[str], Awaitable[None]]
    """Waits until a stopped run's processes are gone."""
    now: Callable[[], float]
    _epochs: WeakKeyDictionary[Link, dict[str, int]] = field(default_factory=WeakKeyDictionary)
    """Campaign → the highest epoch that a link has spoken under. The verbs that name leases carry none of their own."""

    async def answer(self, link: Link, message: Message) -> Message | None:
        """For `swarm.link.serve_links`."""
        return await self.reply(link.peer, message, self._epochs.setdefault(link, {}))

    async def reply(self, peer: PeerId, message: Message, epochs: dict[str, int]) -> Message:
        """The answer to one call. Raises `RemoteProtocolError` for what is not a scheduler's to say.

        `epochs`: what the link has spoken under so far, by campaign; kept up to date here.
        """
        if not isinstance(message, (Probe, Commit, Renew, Cancel, Release, Adopt)):
            raise RemoteProtocolError(f"{type(message).__name__} is not a scheduler's to say")
        if not self.allowed(peer):
            log.info("verb.refused", verb=message.type, peer=peer)
            return Denied(
                reason=Reason.NOT_ALLOWED,
                detail="this worker does not serve you; its owner can: sark-node join --allow " + peer,
            )
        if isinstance(message, (Renew, Cancel, Release)) and (
            stale := self.ledger.stale(peer, message.held, epochs)
        ):
            return stale
        match message:
            case Probe():
                return self._quote(message)
            case Commit():
                return self._commit(peer, message, epochs)
            case Renew():
                renewed = self.ledger.renew(peer, message.held, self.now())
                self.carry_out()
                return renewed
            case Cancel():
                return await self._stop(peer, message, message.reason)
            case Release():
                return await self._stop(peer, message, Reason.CANCELLED)
            case Adopt():
                return self._adopt(peer, message, epochs)

    def unmet(self, unit: str, requirement: Requirement) -> tuple[str, ...]:
        """Why this device does not fit, clause by clause; empty when it does."""
        advert = self.advert()
        units = [offer.unit for offer in advert.units]
        lines = (
            []
            if unit in units
            else [brief(f"unit {unit}: this device has {', '.join(units) or 'none that works'}")]
        )
        lines += [str(item) for item in match(requirement, advert).missing]
        return tuple(lines[:32])

    def _quote(self, ask: Probe) -> Quote:
        self.ledger.expire(self.now())
        self.carry_out()
        shapes: list[ShapeQuote] = []
        for shape in ask.shapes:
            unmet = self.unmet(shape.unit, shape.requirement)
            warm = self.has_model(shape.model)
            shapes.append(
                ShapeQuote(fits=not unmet, unmet=unmet[:MAX_TOLD], warm=warm, fetch=0 if warm else shape.size)
            )
        return self.ledger.quote().model_copy(update={"shapes": tuple(shapes)})

    def _commit(self, peer: PeerId, ask: Commit, epochs: dict[str, int]) -> Message:
        try:
            task = read_task(ask.task)
        except RemoteProtocolError as exc:
            return Denied(reason=Reason.BAD_REQUEST, detail=detail(exc.what))
        if task.scheduler != peer:
            return Denied(reason=Reason.NOT_ALLOWED, detail=f"the task is {task.scheduler}'s, not yours")
        if not verify(peer, task_message(ask.task), ask.signature):
            return Denied(reason=Reason.BAD_REQUEST, detail="the task's signature is not its scheduler's")
        unmet = self.unmet(task.unit, task.requirement)
        if unmet:
            return Denied(reason=Reason.DOES_NOT_FIT, detail=detail("; ".join(unmet)), unmet=unmet)
        wanted = Wanted(
            peer=peer,
            key=ask.key,
            task=task,
            task_sha256=hashlib.sha256(ask.task).hexdigest(),
            attempt=ask.attempt,
            epoch=ask.epoch,
            priority=ask.priority,
            queue=ask.queue,
            ledger=ask.ledger,
        )
        answer = self.ledger.commit(wanted, self.now())
        if isinstance(answer, (Granted, Queued)):
            epochs[task.campaign] = max(ask.epoch, epochs.get(task.campaign, 0))
        self.carry_out()
        return answer

    async def _stop(self, peer: PeerId, ask: Cancel | Release, reason: Reason) -> Stopped:
        dying = self.ledger.stop(peer, ask.held, reason)
        self.carry_out()
        for lease in dying:
            await self.dead(lease)
        return Stopped(leases=tuple(item.lease for item in ask.held))

    def _adopt(self, peer: PeerId, ask: Adopt, epochs: dict[str, int]) -> Message:
        live = self.ledger.adopt(peer, ask.campaign, ask.epoch)
        if isinstance(live, Denied):
            return live
        epochs[ask.campaign] = ask.epoch
        told = [item.model_copy(update={"phase": self.phase(item.lease)}) for item in live]
        told.sort(key=lambda item: item.queued)  # runs first: tickets that do not fit can be asked for again
        return Adopted(incarnation=self.ledger.incarnation, leases=tuple(told[:MAX_BATCH]))
