"""What a submitter is asked and shown about devices that serve it and that it does not trust."""

from __future__ import annotations

import random
from pathlib import Path

import trio

from protocol.messages.work import (
    WORK,
    CredentialsReply,
    Denied,
    Probe,
    ShowCredentials,
    StatusRequest,
    WorkerStatus,
)
from protocol.values.advert import Advert
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason, WorkerState
from scheduler.cli.trust import ask_about
from scheduler.trust.listed import read_listed
from scheduler.trust.serving import serving_peers
from scheduler.trust.untrusted import UntrustedDevice, untrusted_lines
from swarm.base.home import Home
from swarm.memory.network import MemorySwarm
from swarm.net.identity import Identity
from swarm.net.link import Link
from swarm.net.links import serve_links

ANN, EVE = (Identity.from_seed(name) for name in ("ann", "eve"))


def device(who: Identity, name: str, *, serves: bool = True) -> UntrustedDevice:
    return UntrustedDevice(who.peer_id, f"d-{name}", name, serves)


def test_each_is_asked_about_once_by_its_key_and_a_no_is_remembered(tmp_path: Path) -> None:
    home, asked = Home.at(tmp_path), []

    def answer(question: str) -> bool:
        asked.append(question)
        return ANN.peer_id in question

    for _ in range(2):
        ask_about(home, [device(ANN, "laptop-7"), device(EVE, "laptop-7")], answer)
    assert asked == [f"Trust laptop-7 ({who.peer_id}) for your campaigns?" for who in (ANN, EVE)]
    assert read_listed(home).peers == {ANN.peer_id}
    assert read_listed(home).declined == (EVE.peer_id,)


def test_the_command_names_the_key_and_strangers_are_only_counted() -> None:
    lines = untrusted_lines([device(ANN, "laptop\x1b[31m"), device(EVE, "x", serves=False)])
    assert len(lines) == 2
    assert lines[0].endswith(f"serves you, not trusted yet: sark-node trust {ANN.peer_id}")
    assert "\x1b" not in lines[0]
    assert lines[1].startswith("1 stranger fits too")


async def test_who_serves_is_asked_how_it_stands_and_no_task_is_named_to_it() -> None:
    seen: list[Message] = []

    def answers(allowed: bool) -> object:
        async def answer(link: Link, message: Message) -> Message:
            await trio.lowlevel.checkpoint()
            seen.append(message)
            if not allowed:
                return Denied(reason=Reason.NOT_ALLOWED)
            if isinstance(message, ShowCredentials):
                return CredentialsReply(principal=ANN.peer_id, rights=(), priority=50)
            return WorkerStatus(incarnation=1, state=WorkerState.ACTIVE)

        return answer

    async with MemorySwarm(random.Random(1)) as swarm:
        me = swarm.node(Identity.from_seed("me"))
        adverts = []
        for who, allowed in ((ANN, True), (EVE, False)):
            node = swarm.node(who)
            serve_links(node, ProtocolId.WORK, WORK, answers(allowed))  # type: ignore[arg-type]
            adverts.append(Advert(peer=who.peer_id, seq=1, device="d", name="n", addresses=node.addresses))
        token = ShowCredentials(issuer=me.peer_id, token=b"t")
        assert await serving_peers(me, adverts, token) == {ANN.peer_id}
    assert {type(message) for message in seen} == {ShowCredentials, StatusRequest}
    assert Probe not in {type(message) for message in seen}
