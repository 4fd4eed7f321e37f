"""The fuzz in its small form, through the decoders and over real links. The full form: python -m tests.fuzz."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import structlog.testing
import trio

from gate.service import run_gate
from gate.settings import GateSettings
from protocol.messages.health import HEALTH, Ping, Pong
from protocol.wire.codec import Frame, FrameKind, Vocabulary
from protocol.words import ProtocolId
from swarm.base.home import Home
from swarm.join.host import open_host
from swarm.join.node import RunningNode
from swarm.net.identity import Identity
from swarm.net.links import Links
from tests.fuzz.decoding import decode, fuzz_decoders
from tests.fuzz.live import fuzz_nodes
from tests.fuzz.mutations import CHANGES, FAMILIES, examples, plan
from tests.rig.attack import Node
from tests.swarm.attacker import LOOPBACK

FRAMES = 2_000
LIVE = 150


def test_every_message_of_every_family_has_an_example() -> None:
    assert set(FAMILIES) == set(ProtocolId)
    shown = {type(example.message) for example in examples()}
    assert shown == {message for family in FAMILIES.values() for message in family.messages}


def test_no_frame_gets_another_error_out_of_a_decoder_than_that_it_is_wrong() -> None:
    outcomes, strays = fuzz_decoders(random.Random(7), FRAMES)
    assert strays == []
    assert outcomes["refused"] > FRAMES / 4
    assert outcomes["read"] > FRAMES / 20


class Broken(Exception):
    """An error that is not a refusal."""


class BrokenVocabulary(Vocabulary):
    def decode(self, body: bytes) -> Frame:
        raise Broken


def test_the_fuzz_sees_an_error_that_is_no_refusal() -> None:
    good = examples()[0]
    frame = good.vocabulary.encode(Frame(FrameKind.CALL, 1, good.message))
    assert decode(good.vocabulary, frame) in ("read", "refused as a kind")
    with pytest.raises(Broken):
        decode(BrokenVocabulary(), frame)


def test_every_change_changes_something_but_the_one_that_does_not() -> None:
    names = {name for _, name, _ in plan(random.Random(7), 500)}
    assert names == set(CHANGES)


@pytest.mark.patient
async def test_a_gate_answers_others_after_all_of_it_and_logs_no_error(tmp_path: Path) -> None:
    settings = GateSettings(listen=(LOOPBACK,))
    with structlog.testing.capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            gate: RunningNode = await nursery.start(run_gate, Home.at(tmp_path), settings)
            node = Node("gate", gate.identity.peer_id, gate.network.addresses[0])
            protocols = [
                ProtocolId.INDEX,
                ProtocolId.HEALTH,
                ProtocolId.POOL,
                ProtocolId.REACH,
                ProtocolId.GATE,
            ]
            with trio.fail_after(300):
                outcomes = await fuzz_nodes(random.Random(7), [node], LIVE, protocols=protocols)
                async with open_host(Identity.fresh()) as honest, trio.open_nursery() as calls:
                    links = Links(honest, ProtocolId.HEALTH, HEALTH, calls)
                    answer = await links.call(node.peer_id, node.addresses, Ping())
                    calls.cancel_scope.cancel()
            nursery.cancel_scope.cancel()
    assert isinstance(answer, Pong)
    assert outcomes["sent"] >= LIVE
    assert [line for line in lines if line["log_level"] in ("error", "critical")] == []
