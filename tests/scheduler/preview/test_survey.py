"""A survey of workers over the simulated network."""

from __future__ import annotations

import random

import trio

from protocol.messages.work import WORK, CredentialsReply, Probe, Quote, ShapeQuote, ShowCredentials
from protocol.values.advert import Advert, UnitOffer
from protocol.values.requirement import Requirement, parse_clause
from protocol.values.task import Measure, Model, Task, Timeouts
from protocol.wire.base import Message
from protocol.words import ProtocolId, Right, WorkerState
from scheduler.preview.survey import ask_devices
from swarm.memory.network import MemorySwarm
from swarm.net.identity import Identity
from swarm.net.link import Link
from swarm.net.links import serve_links

SUBMITTER = Identity.from_seed("submitter")
UNIT = "CPU (ONNX)"
TASK = Task(
    campaign="c-plan",
    task="c-plan/1",
    scheduler=SUBMITTER.peer_id,
    model=Model(name="m.onnx", sha256="ab" * 32, size=9),
    unit=UNIT,
    requirement=Requirement(clauses=(parse_clause(f"units has {UNIT}"),)),
    measure=Measure(),
    timeouts=Timeouts(),
)


async def answer(link: Link, message: Message) -> Message:
    """A worker whose pool limits this submitter's priority."""
    if isinstance(message, ShowCredentials):
        return CredentialsReply(
            principal=SUBMITTER.peer_id, rights=(Right.STATUS,), priority=20, slots=None, left_s=60.0
        )
    assert isinstance(message, Probe)
    shapes = tuple(ShapeQuote(fits=True) for _ in message.shapes)
    return Quote(incarnation=1, ledger=1, state=WorkerState.ACTIVE, free=1, queue=0, shapes=shapes)


async def test_a_survey_tells_who_is_gone_and_the_highest_priority_at_the_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with MemorySwarm(random.Random(1)) as swarm:
        there, gone = (swarm.node(Identity.from_seed(name)) for name in ("there", "gone"))
        serve_links(there, ProtocolId.WORK, WORK, answer)
        adverts = [
            Advert(
                peer=node.peer_id,
                seq=1,
                device=f"d-{number}",
                name="one",
                units=(UnitOffer(unit=UNIT, runtime="r"),),
                addresses=node.addresses,
            )
            for number, node in enumerate((there, gone))
        ]
        swarm.kill(gone.peer_id)
        me = swarm.node(SUBMITTER)
        token = ShowCredentials(issuer=SUBMITTER.peer_id, token=b"biscuit")
        answers = await ask_devices(me, adverts, [TASK], token, priority=80)
    one, other = answers[there.peer_id], answers[gone.peer_id]
    assert (one.gone, one.most, one.why) == (False, 20, "")
    assert one.quote is not None
    assert (other.gone, other.most, other.quote) == (True, None, None)
