"""A survey of the live swarm for `plan`: which devices there are, and what each worker answers about these tasks. Nothing is committed.

The survey joins as a visitor with a fresh key, so that it does not disturb this home's scheduler process. It shows each worker a token,
valid for a minute, with the right to ask, delegated from the credentials of this home's scheduler.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from protocol.errors import SarkError, Unreachable
from protocol.messages.pool import ManifestMessage
from protocol.messages.work import WORK, CredentialsReply, Denied, Quote, ShapeQuote, ShowCredentials
from protocol.values.advert import Advert
from protocol.values.index_keys import named_peers
from protocol.values.match import match
from protocol.values.requirement import Clause, Op, Requirement
from protocol.values.task import Task
from protocol.values.trust import TrustScope
from protocol.wire.codec import pack
from protocol.words import ProtocolId, Right, Role
from scheduler.campaign.reach import foreign_units
from scheduler.conversation.effects import drive, perform_call
from scheduler.conversation.requests import probe, shapes_of
from scheduler.trust.book import TrustBook
from scheduler.trust.identities import DisputedDevice, clash_lines, clashes
from scheduler.trust.search import disputed_by, find_admitted
from scheduler.trust.serving import serving_peers
from scheduler.trust.untrusted import UntrustedDevice
from swarm.base.home import Home
from swarm.index.index import Index
from swarm.index.query import QueryResult
from swarm.join.ephemeral import GateVisitor, open_ephemeral_node
from swarm.net.identity import Identity, load_or_create
from swarm.net.link import Link
from swarm.net.links import Links
from swarm.net.network import Network
from swarm.pools.membership import signed_manifests
from swarm.pools.tokens import Grant, issue

MAX_DEVICES: Final = 256
"""Most devices that are looked up: in all, and, if there are more, again for each requirement."""
CONCURRENT_LOOKUPS: Final = 8
CONCURRENT_PROBES: Final = 32
MAX_PROBES: Final = 64
"""Most probes of one worker, each about up to 16 kinds of task."""
TOKEN_S: Final = 60.0
VISIT: Final = "c-plan"
"""The campaign id that a visitor names; no campaign has it."""


Kind = tuple[str, str, bytes]
"""Unit, model and requirement: tasks that share these look alike to a worker."""


def kind_of(task: Task) -> Kind:
    """The kind of this task in questions to a worker."""
    return task.unit, task.model.sha256, pack(task.requirement.to_wire())


@dataclass(slots=True)
class DeviceAnswer:
    """One worker's answer. `why`: of a refusal, or why the worker could not be asked; empty when it answered."""

    quote: Quote | None = None
    why: str = ""
    shapes: dict[Kind, ShapeQuote] = field(default_factory=dict)
    most: int | None = None
    """The highest priority of this submitter's tasks there; None: it did not say."""
    gone: bool = False
    """Whether it could not be reached although its advert is still found."""


@dataclass(frozen=True, slots=True)
class SwarmVisit:
    """The result of a survey."""

    adverts: tuple[Advert, ...]
    answers: Mapping[str, DeviceAnswer]
    """Answers by peer; only workers that fit one of the tasks were asked."""
    complete: bool = True
    """Whether no device that may fit was left out."""
    untrusted: tuple[UntrustedDevice, ...] = ()
    """Devices that fit but that the campaign does not admit; those that serve this submitter come first."""
    others: tuple[Advert, ...] = ()
    """All devices of the swarm that the campaign does not admit."""
    named: frozenset[str] = frozenset()
    """Devices that are admitted only to tasks that name them."""
    clashes: tuple[str, ...] = ()
    """Workers left out because they claim the device id of another key, in words."""

    def may_have(self, requirement: Requirement, advert: Advert) -> bool:
        """Whether a device fits, and is admitted to such a task."""
        return fits_admitted(requirement, advert, self.named)


async def visit(
    gates: Sequence[str],
    home: Home,
    requirements: Sequence[Requirement],
    tasks_on: Callable[[Sequence[Advert]], Sequence[Task]],
    *,
    priority: int,
    now: float,
    trust: TrustScope,
    book: TrustBook,
) -> SwarmVisit:
    """Find the devices, derive the tasks, and ask devices that fit and that `trust` admits. `requirements`: the minimum requirements of the
    tasks; `now`: wall seconds. Other fitting devices are only asked whether they serve this submitter, without naming a task.

    Raises `Unreachable` when no gate answers.
    """
    visitor, scheduler = Identity.fresh(), load_or_create(home.key("scheduler"))
    token = visitor_token(scheduler, visitor.peer_id, now=now)
    manifests = signed_manifests(home, Role.SUBMIT)
    async with open_ephemeral_node(gates, visitor) as (network, index, _):
        everybody, complete = await find_devices(index, requirements)
        found = {advert.peer: advert for advert in everybody}
        admitted: dict[str, Advert] = {}
        for need in dict.fromkeys(requirements):
            direct, _ = await find_admitted(index, need, MAX_DEVICES, trust, book)
            found |= {advert.peer: advert for advert in direct}
            scope = trust.naming(named_peers(need))
            admitted |= {
                peer: advert for peer, advert in found.items() if scope.admits(peer, book.trust_of(peer))
            }
        clashing = clashes(book, found.values())
        admitted = {peer: advert for peer, advert in admitted.items() if peer not in clashing}
        others = tuple(
            advert for peer, advert in found.items() if peer not in admitted and peer not in clashing
        )
        fitting = [advert for advert in others if any(match(need, advert).fits for need in requirements)]
        gate_visitor = GateVisitor(network, scheduler)
        await gate_visitor.announce(address for advert in found.values() for address in advert.addresses)
        devices = tuple(admitted.values())
        named = frozenset(peer for peer in admitted if not trust.admits(peer, book.trust_of(peer)))
        answers = await ask_devices(
            network, devices, tasks_on(devices), token, manifests, priority=priority, named=named
        )
        serving = await serving_peers(network, fitting, token, manifests)
    untrusted = [UntrustedDevice(a.peer, a.device, a.name, a.peer in serving) for a in fitting]
    untrusted.sort(key=lambda each: (not each.serves, each.name, each.peer))
    words = {
        known: [str(clash) for peer, clash in sorted(clashing.items()) if book.knows(peer) is known]
        for known in (True, False)
    }
    lines = tuple(clash_lines(words[True], words[False]))
    return SwarmVisit(devices, answers, complete, tuple(untrusted), others, named, lines)


def fits_admitted(requirement: Requirement, advert: Advert, named: Collection[str]) -> bool:
    """Whether a device fits a task, and the task names it if it is admitted only for that."""
    admitted = advert.peer not in named or advert.peer in named_peers(requirement)
    return admitted and match(requirement, advert).fits


async def find_disputed(
    gates: Sequence[str], requirements: Sequence[Requirement], trust: TrustScope, book: TrustBook
) -> DisputedDevice | None:
    """Like `disputed_by`, for the swarm behind `gates`. Raises `Unreachable` when no gate answers."""
    async with open_ephemeral_node(gates, Identity.fresh()) as (_, index, _):
        return await disputed_by(index, requirements, trust, book)


async def find_foreign_units(gates: Sequence[str], wanted: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The units in the swarm behind `gates` that are not known here, with their formats; in a large swarm `wanted` take precedence. Raises
    `Unreachable` when no gate answers.
    """
    needs = [Requirement(clauses=(Clause(attribute="units", op=Op.HAS, value=unit),)) for unit in wanted]
    async with open_ephemeral_node(gates, Identity.fresh()) as (_, index, _):
        adverts, _ = await find_devices(index, needs)
    return foreign_units(offer for advert in adverts for offer in advert.units)


async def find_devices(index: Index, requirements: Sequence[Requirement]) -> tuple[tuple[Advert, ...], bool]:
    """All devices or, if there are too many to look up, some of all kinds and those that meet one of `requirements`. Also returns whether
    no device that meets a requirement was left out.
    """
    adverts: dict[str, Advert] = {}

    def add(result: QueryResult) -> bool:
        adverts.update({s.advert.peer: s.advert for s in result.devices if not s.advert.gone})
        return result.complete

    if add(await index.everybody(MAX_DEVICES)):
        return tuple(adverts.values()), True
    slots, complete = trio.CapacityLimiter(CONCURRENT_LOOKUPS), [bool(requirements)]

    async def query(requirement: Requirement) -> None:
        async with slots:
            complete.append(add(await index.query(requirement, MAX_DEVICES)))

    async with trio.open_nursery() as nursery:
        for requirement in requirements:
            nursery.start_soon(query, requirement)
    return tuple(adverts.values()), all(complete)


def visitor_token(scheduler: Identity, visitor: str, *, now: float) -> ShowCredentials:
    """A token with which the visitor asks on behalf of the scheduler."""
    token = issue(scheduler, visitor, Grant(frozenset({Right.STATUS}), ttl_s=TOKEN_S), now=now)
    return ShowCredentials(issuer=scheduler.peer_id, token=token)


async def ask_devices(
    network: Network,
    adverts: Sequence[Advert],
    tasks: Sequence[Task],
    token: ShowCredentials,
    manifests: Sequence[tuple[str, ManifestMessage | None]] = (),
    *,
    priority: int,
    named: Collection[str] = (),
) -> dict[str, DeviceAnswer]:
    """Ask each worker about the tasks that it fits; workers in `named` only about tasks that name them."""
    alike: dict[Kind, Task] = {}
    for task in tasks:
        alike.setdefault(kind_of(task), task)
    kinds: dict[Requirement, list[Kind]] = {}
    for kind, task in alike.items():
        kinds.setdefault(task.requirement, []).append(kind)
    slots = trio.CapacityLimiter(CONCURRENT_PROBES)
    answers: dict[str, DeviceAnswer] = {}

    async def ask(links: Links, advert: Advert, fitting: dict[Kind, Task]) -> None:
        answers[advert.peer] = answer = DeviceAnswer()
        async with slots:
            try:
                link = await links.get(advert.peer, advert.addresses, max_wait_s=3.0)
                permitted = await link.call(token, max_wait_s=3.0)
                if isinstance(permitted, Denied):
                    for name, manifest in manifests:  # the worker's copy may predate our membership
                        if name in advert.pools and manifest is not None:
                            await link.call(manifest, max_wait_s=3.0)
                    permitted = await link.call(token, max_wait_s=3.0)  # the probe shows its effect
                if isinstance(permitted, CredentialsReply):
                    answer.most = permitted.priority
                await _ask(link, fitting, answer, priority)
            except SarkError as exc:
                answer.quote, answer.why, answer.gone = None, exc.what, isinstance(exc, Unreachable)

    async with trio.open_nursery() as nursery:
        links = Links(network, ProtocolId.WORK, WORK, nursery)
        async with trio.open_nursery() as asking:
            for advert in adverts:
                fitting = {
                    kind: alike[kind]
                    for requirement, some in kinds.items()
                    if fits_admitted(requirement, advert, named)
                    for kind in some
                }
                if fitting:
                    asking.start_soon(ask, links, advert, fitting)
        nursery.cancel_scope.cancel()
    return answers


async def _ask(link: Link, tasks: Mapping[Kind, Task], answer: DeviceAnswer, priority: int) -> None:
    """Send probes until every kind of task has been asked about."""
    left = {shapes_of((task,), lambda _: priority)[0]: kind for kind, task in tasks.items()}
    for _ in range(MAX_PROBES):
        if not left:
            return
        shapes = shapes_of((tasks[kind] for kind in left.values()), lambda _: priority)
        reply = await drive(probe(link, VISIT, shapes), perform_call)
        if isinstance(reply, Denied):
            answer.quote = None
            answer.why = f"{reply.reason}: {reply.detail}" if reply.detail else str(reply.reason)
            return
        answer.quote = reply
        for shape, quoted in itertools.zip_longest(shapes, reply.shapes):
            kind = left.pop(shape)
            if quoted is not None:
                answer.shapes[kind] = quoted
