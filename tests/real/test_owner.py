"""A device's owner and a stranger at real workers: the owner is obeyed from anywhere, the stranger is refused every verb."""

from __future__ import annotations

import re

import trio

from protocol.messages.work import (
    WORK,
    Action,
    AdoptRequest,
    Cancel,
    Commit,
    Control,
    Denied,
    HeldLease,
    ListLeases,
    Probe,
    Release,
    Renew,
    Shape,
    ShowCredentials,
    StatusRequest,
)
from protocol.values.lease import Fence
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts, task_body, task_message
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason, Right
from swarm.join.host import open_host
from swarm.join.known_gates import read_addresses
from swarm.net.identity import Identity, load_or_create
from swarm.net.links import Links
from swarm.pools.tokens import Grant, issue
from tests.real.lab import Lab, until


def test_an_owner_pauses_a_device_and_has_it_go_on_without_and_with_a_gate(lab: Lab) -> None:
    paused = lab.run("one", "pause")
    assert paused.code == 0, paused
    assert paused.out == "this device: paused by its owner\n"
    resumed = lab.run("one", "resume", "one", "--gate", lab.gate)
    assert resumed.code == 0, resumed
    assert re.fullmatch(r"one …\w{8}: active; direct, [0-9.]+ ms\n", resumed.out), resumed


def test_the_owner_of_another_home_is_refused(lab: Lab) -> None:
    done = lab.run("stranger", "pause", "one", "two", "--gate", lab.gate, "--json")
    assert done.code == 5, done
    assert all(device["error"] == "you are not its owner" for device in done.json()["devices"])
    assert lab.run("one", "status").out.startswith("this device: active")


def test_a_drained_worker_ends_by_itself(lab: Lab) -> None:
    process = lab.running["two"]
    assert lab.run("two", "drain").code == 0
    until(lambda: process.poll() is not None, "the drained worker has ended")
    lab.running.pop("two").communicate()
    assert process.returncode == 0
    gone = lab.run("two", "status")
    assert gone.code == 4, gone
    assert not read_addresses(lab.home("two").worker_file)


def test_a_stranger_is_refused_every_verb_over_a_real_connection(lab: Lab) -> None:
    answers = trio.run(_everything, Identity.fresh(), lab)
    assert len(answers) == 11
    for verb, answer in answers.items():
        assert isinstance(answer, Denied), (verb, answer)
        assert answer.reason is Reason.NOT_ALLOWED, (verb, answer)


async def _everything(me: Identity, lab: Lab) -> dict[str, Message]:
    """Send each verb, with forged and self-made permissions presented before and between."""
    home = lab.home("one")
    worker = load_or_create(home.key("worker")).peer_id
    held = (HeldLease(lease="l-1", fence=Fence(incarnation=1, number=1)),)
    task = Task(
        campaign="c-1",
        task="c-1/1",
        scheduler=me.peer_id,
        model=Model(name="m.onnx", sha256="a" * 64, size=1),
        unit="Fake (Simulation)",
        requirement=Requirement(),
        measure=Measure(runs=1, loads=1),
        timeouts=Timeouts(),
    )
    body = task_body(task)
    now = 1_700_000_000.0
    own = issue(me, me.peer_id, Grant(frozenset(Right), ttl_s=3e8), now=now)
    shape = Shape(unit=task.unit, requirement=Requirement(), model="a" * 64, size=1)
    verbs: tuple[Message, ...] = (
        ShowCredentials(issuer=me.peer_id, token=own),
        ShowCredentials(issuer=lab.peer("ada"), token=own),
        Probe(campaign="c-1", shapes=(shape,)),
        Commit(key="k", attempt=1, epoch=1, task=body, signature=me.sign(task_message(body))),
        Renew(held=held),
        Cancel(held=held),
        Release(held=held),
        AdoptRequest(campaign="c-1", epoch=9),
        ListLeases(campaign="c-1"),
        Control(action=Action.DRAIN, now=True),
        StatusRequest(),
    )
    async with open_host(me) as network, trio.open_nursery() as nursery:
        links = Links(network, ProtocolId.WORK, WORK, nursery)
        addresses = read_addresses(home.worker_file)
        answers = {
            f"{number} {type(verb).__name__}": await links.call(worker, addresses, verb)
            for number, verb in enumerate(verbs)
        }
        nursery.cancel_scope.cancel()
    return answers
