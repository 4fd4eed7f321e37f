"""Sends an owner's command to workers: to this home's worker at its stored addresses, to others through the index.

The sender is an ephemeral node with a fresh key, since the scheduler of this home may be running under its own key. It shows each worker a
token that is valid for a minute and signed with the scheduler's key.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import trio
from rich.table import Table

from protocol.errors import Refused, RemoteProtocolError, SarkError, Unreachable
from protocol.messages.work import (
    WORK,
    Control,
    Denied,
    RunningJob,
    ShowCredentials,
    StatusRequest,
    WorkerStatus,
)
from protocol.values.advert import Advert
from protocol.words import ProtocolId, Reason, Right, WorkerState
from swarm.base.home import Home
from swarm.base.text import escape_text
from swarm.base.units import show_duration
from swarm.index.index import Index
from swarm.join.ephemeral import GateVisitor
from swarm.join.host import open_host
from swarm.join.known_gates import read_addresses
from swarm.net.identity import Identity, load_or_create
from swarm.net.links import Links
from swarm.net.network import Network, Path, path_json, path_words
from swarm.pools.people import shown
from swarm.pools.tokens import Grant, issue

TOKEN_TTL_S: Final = 60.0
ANSWER_S: Final = 5.0
COMMAND_S: Final = 120.0
"""Long, because a reset tests the device, and may first wait for another measurement."""
MIN_TAIL: Final = 6
"""Trailing characters that suffice to name a peer id."""
HERE: Final = "this device"


@dataclass(frozen=True, slots=True)
class WorkerTarget:
    """A worker that the command is for."""

    word: str
    """The name that the owner used."""
    name: str
    peer: str
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OwnerReply:
    """One worker's status after the command, or the error."""

    name: str
    peer: str
    status: WorkerStatus | None
    error: SarkError | None = None
    path: Path | None = None
    """The path of the reply."""
    addresses: tuple[str, ...] = ()


async def send_command(
    home: Home, words: Sequence[str], gates: Sequence[str], message: Control | StatusRequest
) -> tuple[OwnerReply, ...]:
    """Send `message` concurrently to the workers named by `words` (none: this home's own). A failure of one does not stop the others.

    A name that several devices share means all of them. Refusals by devices of other owners are dropped unless all refuse.
    """
    me, owner = Identity.fresh(), load_or_create(home.key("scheduler"))
    own = _own(home)
    local = not words or set(words) <= {own.peer, own.peer[-8:]}
    rng = random.Random()
    async with (
        open_host(me, bootstrap=() if local else tuple(gates), rng=rng) as network,
        trio.open_nursery() as nursery,
    ):
        targets, unknown = ([own], []) if local else await _find(network, own, words, gates, rng, nursery)
        grant = Grant(frozenset({Right.CONTROL, Right.STATUS}), ttl_s=TOKEN_TTL_S)
        credentials = ShowCredentials(
            issuer=owner.peer_id, token=issue(owner, me.peer_id, grant, now=time.time())
        )
        links = Links(network, ProtocolId.WORK, WORK, nursery)
        visitor = GateVisitor(network, owner, wall=time.time)
        await visitor.announce(address for target in targets for address in target.addresses)
        replies: dict[str, OwnerReply] = {}

        async def send(target: WorkerTarget) -> None:
            try:
                status, took_ms = await _ask(links, target, credentials, message)
                path = network.path(target.peer)
                path = None if path is None else replace(path, rtt_ms=took_ms)
                replies[target.peer] = OwnerReply(
                    target.name, target.peer, status, path=path, addresses=target.addresses
                )
            except SarkError as exc:
                replies[target.peer] = OwnerReply(target.name, target.peer, None, exc)

        async with trio.open_nursery() as sending:
            for target in {target.peer: target for target in targets}.values():
                sending.start_soon(send, target)
        nursery.cancel_scope.cancel()
    return (*unknown, *_own_replies(targets, replies))


def _own_replies(targets: Sequence[WorkerTarget], replies: dict[str, OwnerReply]) -> list[OwnerReply]:
    """The replies, without refusals of devices that merely share a name with a device that obeyed."""
    obeyed = {target.word for target in targets if replies[target.peer].status is not None}
    own = {
        target.peer: replies[target.peer]
        for target in targets
        if target.word not in obeyed or not isinstance(replies[target.peer].error, Refused)
    }
    return sorted(own.values(), key=lambda reply: (reply.name, reply.peer))


def _own(home: Home) -> WorkerTarget:
    peer = load_or_create(home.key("worker")).peer_id
    return WorkerTarget(HERE, HERE, peer, read_addresses(home.worker_file))


async def _find(
    network: Network,
    own: WorkerTarget,
    words: Sequence[str],
    gates: Sequence[str],
    rng: random.Random,
    nursery: trio.Nursery,
) -> tuple[list[WorkerTarget], list[OwnerReply]]:
    """The workers that `words` name, and an error for each word that names none."""
    if not gates:
        raise Unreachable(
            "no gate is known here, so no other device can be found",
            hint="start one with: sark-node gate\nor name one: --gate /ip4/…/tcp/4101/p2p/12D3Koo…",
        )
    if not network.connected():
        raise Unreachable(
            "no gate answers: " + ", ".join(gates), hint="is it running, and is the address right?"
        )
    index = Index(network, rng=rng, serve=False)
    await nursery.start(index.run)
    adverts = [sighting.advert for sighting in (await index.everybody()).devices]
    targets: list[WorkerTarget] = []
    missing: list[OwnerReply] = []
    for word in words:
        matches = [advert for advert in adverts if word_matches_device(word, advert)]
        targets += [WorkerTarget(word, advert.name, advert.peer, advert.addresses) for advert in matches]
        if not matches and word in (own.peer, own.peer[-8:]):
            targets.append(own)
        elif not matches:
            error = Unreachable(f"no device {word!r} in the swarm", hint="list them: sark-node peers")
            missing.append(OwnerReply(word, "", None, error))
    return targets, missing


def word_matches_device(word: str, advert: Advert) -> bool:
    """Whether `word` is the device's name or id, or the end of its worker's peer id."""
    tail = word.removeprefix("…")
    return word in (advert.name, advert.device) or (len(tail) >= MIN_TAIL and advert.peer.endswith(tail))


async def _ask(
    links: Links, target: WorkerTarget, credentials: ShowCredentials, message: Control | StatusRequest
) -> tuple[WorkerStatus, float]:
    """The worker's status, and the round trip of the first call in ms."""
    if not target.addresses:
        raise Unreachable(
            "no worker of this home is running"
            if target.name == HERE
            else f"{target.name} cannot be dialled",
            hint="start it: sark-node join" if target.name == HERE else "",
        )
    try:
        link = await links.get(target.peer, target.addresses, max_wait_s=ANSWER_S)
    except Unreachable as exc:
        if target.name != HERE:
            raise
        raise Unreachable("the worker of this home does not answer", hint="start it: sark-node join") from exc
    began = trio.current_time()
    answer = await link.call(credentials, max_wait_s=ANSWER_S)
    took_ms = (trio.current_time() - began) * 1000
    if not isinstance(answer, Denied):
        answer = await link.call(message, max_wait_s=COMMAND_S)
    if isinstance(answer, Denied):
        hint = f"only its owner can control it; to become an owner, run on that device: sark-node join --owner {credentials.issuer}"
        not_owner = answer.reason is Reason.NOT_ALLOWED
        raise Refused(
            "you are not its owner" if not_owner else answer.detail,
            reason=answer.reason,
            hint=hint if not_owner else "",
        )
    if not isinstance(answer, WorkerStatus):
        raise RemoteProtocolError(f"answered with {type(answer).__name__}, not with its status")
    return answer, took_ms


def status_line(reply: OwnerReply) -> str:
    """`lab-1 …nF2cDYa1: paused by its owner; 1 running, 3 queued`."""
    # Anybody can give a device any name, so this also shows the end of its id, which the channel proved.
    tail = f" …{reply.peer[-8:]}" if reply.peer and reply.name != HERE else ""
    who = f"{escape_text(reply.name)}{tail}"
    status = reply.status
    if status is None:
        return f"{who}: {escape_text(reply.error.what) if reply.error else 'no reply'}"
    state = f"{status.state} ({escape_text(status.why)})" if status.why else str(status.state)
    if (
        status.state is WorkerState.DRAINING and status.why
    ):  # paused, quiet hours, drained: the reason is enough
        state = escape_text(status.why)
    work = f"{status.running} running, {status.queue} queued" if status.running or status.queue else ""
    path = path_words(reply.path, reply.addresses) if reply.name != HERE else ""
    return "; ".join([f"{who}: {state}", *filter(None, (work, escape_text(status.reach or ""), path))])


def still_held(reply: OwnerReply) -> tuple[str, ...]:
    """Lines for an owner whose `resume` did not end a rule that still holds the worker back; empty: no rule does."""
    status = reply.status
    if status is None or status.state is not WorkerState.DRAINING or not status.why:
        return ()
    return (
        f"  it is not paused, but a rule still applies: {escape_text(status.why)}",
        "  it serves again when the rule ends; to serve now, restart it without the rule (--quiet, --on-battery)",
    )


def jobs_table(jobs: Sequence[RunningJob], names: Mapping[str, str]) -> Table:
    """A table with a row for each job, running jobs first. `names`: known names of the principals."""
    table = Table(box=None, padding=(0, 2, 0, 2), header_style="dim")
    for column in ("task", "model", "for", "team", "priority", "state", "since"):
        table.add_column(
            column,
            no_wrap=column not in ("model", "team"),
            overflow="ellipsis" if column == "for" else "fold",
            max_width=16 if column == "for" else None,
            justify="right" if column in ("priority", "since") else "left",
        )
    for job in jobs:
        state = escape_text(job.state)
        table.add_row(
            escape_text(job.task),
            escape_text(job.model),
            escape_text(shown(job.principal, names)),
            escape_text(job.team),
            str(job.priority),
            f"{state}, {job.phase}" if job.phase is not None and state == "running" else state,
            show_duration(round(job.since_s)),
        )
    return table


def reply_json(reply: OwnerReply) -> dict[str, Any]:
    document: dict[str, Any] = {"device": reply.name, "peer": reply.peer or None}
    if reply.status is None:
        return {**document, "error": reply.error.what if reply.error else None}
    path = path_json(reply.path) if reply.name != HERE else None
    return {**document, **reply.status.model_dump(mode="json"), "path": path}
