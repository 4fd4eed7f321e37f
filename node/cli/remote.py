"""An owner's command on its way to devices: this home's worker by the addresses it left here, others by the index.

The process that speaks is a passing visitor with a fresh key. It shows each device a permission of a minute that this home's scheduler
key signed: the scheduler itself may be running in the background, and has its key's place on the network.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import trio

from protocol.errors import Refused, RemoteProtocolError, SarkError, Unreachable
from protocol.messages.work import WORK, Control, Denied, ShowCredentials, StatusRequest, WorkerStatus
from protocol.values.advert import Advert
from protocol.words import ProtocolId, Reason, Right
from swarm.base.home import Home
from swarm.index.index import Index
from swarm.join.ephemeral import Visitor
from swarm.join.host import open_host
from swarm.join.known_gates import left_addresses
from swarm.net.identity import Identity, load_or_create
from swarm.net.link import Links
from swarm.net.network import Network, Path
from swarm.pools.tokens import Grant, issue

LASTS_S: Final = 60.0
ANSWER_S: Final = 5.0
EXAMINED_S: Final = 120.0
"""A device that is to be examined may have to wait for another worker's measurement first."""
SHORTEST: Final = 6
"""Letters of the end of a peer id that are enough to name it."""
HERE: Final = "this device"


@dataclass(frozen=True, slots=True)
class WorkerTarget:
    """A device to be told."""

    word: str
    """As it was named."""
    name: str
    peer: str
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OwnerReply:
    """What one device answered: how it stands now, or why not."""

    name: str
    peer: str
    standing: WorkerStatus | None
    error: SarkError | None = None
    path: Path | None = None
    """By which way it was spoken with."""
    addresses: tuple[str, ...] = ()


async def tell_devices(
    home: Home,
    words: Sequence[str],
    gates: Sequence[str],
    message: Control | StatusRequest,
    *,
    wall: Callable[[], float] = time.time,
) -> tuple[OwnerReply, ...]:
    """Say it to the devices named by `words` (none: this home's own worker), all at once. One that fails does not keep others from it.

    A name that fits several devices means all of them; those among them that are not one's own say no, which is told only if all do.
    """
    me, owner = Identity.fresh(), load_or_create(home.key("scheduler"))
    own = _own(home)
    local = not words or set(words) <= {own.peer, own.peer[-8:]}
    rng = random.Random()
    async with (
        open_host(me, bootstrap=() if local else tuple(gates), server=False, rng=rng) as network,
        trio.open_nursery() as nursery,
    ):
        targets, told = ([own], []) if local else await _find(network, own, words, gates, rng, nursery)
        grant = Grant(frozenset({Right.CONTROL, Right.STATUS}), lasts_s=LASTS_S)
        present = ShowCredentials(issuer=owner.peer_id, token=issue(owner, me.peer_id, grant, now=wall()))
        links = Links(network, ProtocolId.WORK, WORK, nursery)
        visitor = Visitor(network, owner, wall=wall)
        await visitor.announce(address for target in targets for address in target.addresses)
        answers: dict[str, OwnerReply] = {}

        async def tell(target: WorkerTarget) -> None:
            try:
                standing, took_ms = await _say(links, target, present, message)
                path = network.path(target.peer)
                path = None if path is None else replace(path, rtt_ms=took_ms)
                answers[target.peer] = OwnerReply(
                    target.name, target.peer, standing, path=path, addresses=target.addresses
                )
            except SarkError as exc:
                answers[target.peer] = OwnerReply(target.name, target.peer, None, exc)

        async with trio.open_nursery() as telling:
            for target in {target.peer: target for target in targets}.values():
                telling.start_soon(tell, target)
        nursery.cancel_scope.cancel()
    return (*told, *_chosen(targets, answers))


def _chosen(targets: Sequence[WorkerTarget], answers: dict[str, OwnerReply]) -> list[OwnerReply]:
    """Without the refusals of those who only share a name with a device that obeyed."""
    obeyed = {target.word for target in targets if answers[target.peer].standing is not None}
    kept = {
        target.peer: answers[target.peer]
        for target in targets
        if target.word not in obeyed or not isinstance(answers[target.peer].error, Refused)
    }
    return sorted(kept.values(), key=lambda item: (item.name, item.peer))


def _own(home: Home) -> WorkerTarget:
    peer = load_or_create(home.key("worker")).peer_id
    return WorkerTarget(HERE, HERE, peer, left_addresses(home.worker_file))


async def _find(
    network: Network,
    own: WorkerTarget,
    words: Sequence[str],
    gates: Sequence[str],
    rng: random.Random,
    nursery: trio.Nursery,
) -> tuple[list[WorkerTarget], list[OwnerReply]]:
    """The devices that are meant, and what is to be said of words that mean none."""
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
    adverts = [sighting.advert for sighting in (await index.everybody()).found]
    targets: list[WorkerTarget] = []
    missing: list[OwnerReply] = []
    for word in words:
        found = [advert for advert in adverts if means(word, advert)]
        targets += [WorkerTarget(word, advert.name, advert.peer, advert.addresses) for advert in found]
        if not found and word in (own.peer, own.peer[-8:]):
            targets.append(own)
        elif not found:
            error = Unreachable(f"no device {word!r} in the swarm", hint="list them: sark-node peers")
            missing.append(OwnerReply(word, "", None, error))
    return targets, missing


def means(word: str, advert: Advert) -> bool:
    """Whether `word` is the device's name or id, its worker's peer id, or the end of that."""
    tail = word.removeprefix("…")
    return word in (advert.name, advert.device) or (len(tail) >= SHORTEST and advert.peer.endswith(tail))


async def _say(
    links: Links, target: WorkerTarget, present: ShowCredentials, message: Control | StatusRequest
) -> tuple[WorkerStatus, float]:
    """How it stands, and how many ms the first answer took."""
    if not target.addresses:
        raise Unreachable(
            "no worker of this home runs" if target.name == HERE else f"{target.name} cannot be dialled",
            hint="start it: sark-node join" if target.name == HERE else "",
        )
    try:
        link = await links.get(target.peer, target.addresses, max_wait_s=ANSWER_S)
    except Unreachable as exc:
        if target.name != HERE:
            raise
        raise Unreachable(
            "the worker of this home does not answer", hint="is it running? start it: sark-node join"
        ) from exc
    began = trio.current_time()
    answer = await link.call(present, max_wait_s=ANSWER_S)
    took_ms = (trio.current_time() - began) * 1000
    if not isinstance(answer, Denied):
        answer = await link.call(message, max_wait_s=EXAMINED_S)
    if isinstance(answer, Denied):
        hint = f"only its owner can; on that device: sark-node join --owner {present.issuer}"
        not_owner = answer.reason is Reason.NOT_ALLOWED
        raise Refused(
            "you are not its owner" if not_owner else answer.detail,
            reason=answer.reason,
            hint=hint if not_owner else "",
        )
    if not isinstance(answer, WorkerStatus):
        raise RemoteProtocolError(f"answered with {type(answer).__name__}, which is no answer to that")
    return answer, took_ms
