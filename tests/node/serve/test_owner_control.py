"""An owner controls a whole worker over an in-memory network: pause, resume, drain, reset, and the rules set in advance."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from node.serve.owner_control import CHECK_S, Pause
from protocol.errors import ResourceError
from protocol.messages.health import HEALTH, Ping, Pong
from protocol.messages.pool import ManifestMessage, PoolManifest, PoolMember
from protocol.messages.work import (
    Action,
    Control,
    CredentialsReply,
    Denied,
    Granted,
    Probe,
    Progress,
    Queued,
    Quote,
    Ready,
    Renew,
    Renewed,
    Result,
    Shape,
    ShowCredentials,
    StatusRequest,
    WorkerStatus,
)
from protocol.values.requirement import Requirement
from protocol.words import ProtocolId, Reason, Right, Role, RunOutcome, WorkerState
from swarm.net.identity import Identity
from swarm.net.link import Link
from swarm.pools.manifests import sign_manifest, verified
from swarm.pools.tokens import Grant, issue

CONTROL = frozenset({Right.CONTROL, Right.STATUS})


def probe() -> Probe:
    shape = Shape(unit="CPU (ONNX)", requirement=Requirement(), model="a" * 64, size=1)
    return Probe(campaign="c-1", shapes=(shape,))


async def until(condition: Any) -> None:
    with trio.fail_after(5):
        while not condition():
            await trio.sleep(0.001)


async def say(link: Link, action: Action, *, now: bool = False, finish: bool = False) -> WorkerStatus:
    return await link.ask(Control(action=action, now=now, finish=finish), WorkerStatus)


async def test_paused_nothing_new_is_taken_and_what_runs_goes_on(world: Any) -> None:
    worker = await world.start()
    link = await world.link()
    granted = await link.ask(world.ann.commit(world.ann.task(1)), Granted)
    ticket = await link.ask(world.ann.commit(world.ann.task(2), queue=True), Queued)
    await world.ann.wait_for(Progress)
    result = await say(link, Action.PAUSE)
    assert (result.state, result.why, result.running, result.queue) == (
        WorkerState.DRAINING,
        "paused by its owner",
        1,
        0,
    )
    renewed = await link.ask(Renew(held=(world.held(granted), world.held(ticket))), Renewed)
    assert renewed.renewed == (granted.lease,)
    assert renewed.lost[0].reason is Reason.NOT_SERVING
    assert (renewed.state, renewed.why) == (WorkerState.DRAINING, "paused by its owner")
    quote = await link.ask(probe(), Quote)
    assert (quote.free, quote.why) == (0, "paused by its owner")
    denied = await link.ask(world.ann.commit(world.ann.task(3)), Denied)
    assert (denied.reason, denied.detail) == (
        Reason.NOT_SERVING,
        "this worker takes no new work: paused by its owner",
    )
    pings = Link(await world.ann.network.open(world.network.peer_id, ProtocolId.HEALTH), HEALTH)
    await world.nursery.start(pings.run)
    assert (await pings.ask(Ping(), Pong)).why == "paused by its owner"
    world.device.go.set()
    assert (await world.ann.record()).outcome is RunOutcome.COMPLETE
    assert (await say(link, Action.RESUME)).why == ""
    await until(lambda: worker.ledger.condition.state is WorkerState.ACTIVE)
    await link.ask(world.ann.commit(world.ann.task(3), attempt=2), Granted)


async def test_pause_now_ends_what_runs(world: Any) -> None:
    await world.start()
    link = await world.link()
    await link.ask(world.ann.commit(world.ann.task()), Granted)
    await world.ann.wait_for(Progress)
    await say(link, Action.PAUSE, now=True)
    record = await world.ann.record()
    assert (record.outcome, record.reason) == (RunOutcome.CANCELLED, Reason.NOT_SERVING)


async def test_a_pause_survives_a_restart_and_resume_ends_it_for_good(world: Any) -> None:
    await world.start()
    await say(await world.link(), Action.PAUSE)
    world.kill()
    again = await world.start()
    await until(lambda: not again.ledger.condition.serving)
    assert again.ledger.condition.why == "paused by its owner"
    await say(await world.link(), Action.RESUME)
    world.kill()
    third = await world.start()
    await trio.testing.wait_all_tasks_blocked()
    assert third.ledger.condition.serving


async def test_drain_lets_the_run_end_hands_over_its_result_and_leaves(world: Any) -> None:
    await world.start()
    link = await world.link()
    await link.ask(world.ann.commit(world.ann.task(1)), Granted)
    await link.ask(world.ann.commit(world.ann.task(2), queue=True), Queued)
    await world.ann.wait_for(Progress)
    result = await say(link, Action.DRAIN)
    assert (result.why, result.queue) == ("drained by its owner", 0)
    assert not world.parts.leave.is_set()
    world.device.go.set()
    assert (await world.ann.record()).outcome is RunOutcome.COMPLETE
    with trio.fail_after(5):
        await world.parts.leave.wait()
    await until(lambda: world.board.withdrawn)
    assert world.ann.count(Result) == 1
    assert not world.unsent()


async def test_drain_with_finish_runs_the_queued_leases_too(world: Any) -> None:
    await world.start()
    link = await world.link()
    await link.ask(world.ann.commit(world.ann.task(1)), Granted)
    await link.ask(world.ann.commit(world.ann.task(2), queue=True), Queued)
    assert (await say(link, Action.DRAIN, finish=True)).queue == 1
    assert (await link.ask(world.ann.commit(world.ann.task(3)), Denied)).reason is Reason.NOT_SERVING
    world.device.go.set()
    await world.ann.wait_for(Ready)
    await world.ann.record(2)
    with trio.fail_after(5):
        await world.parts.leave.wait()


async def test_a_drain_can_be_undone_during_a_run(world: Any) -> None:
    worker = await world.start()
    link = await world.link()
    await link.ask(world.ann.commit(world.ann.task(1)), Granted)
    await say(link, Action.DRAIN)
    assert (await say(link, Action.RESUME)).state is WorkerState.BUSY
    world.device.go.set()
    await world.ann.record()
    await until(lambda: worker.ledger.condition.state is WorkerState.ACTIVE)
    assert not world.parts.leave.is_set()


async def test_drain_now_leaves_at_once(world: Any) -> None:
    await world.start()
    link = await world.link()
    await link.ask(world.ann.commit(world.ann.task()), Granted)
    await world.ann.wait_for(Progress)
    await say(link, Action.DRAIN, now=True)
    assert (await world.ann.record()).outcome is RunOutcome.CANCELLED
    await until(lambda: world.board.withdrawn)


async def test_reset_brings_back_a_faulty_device_that_is_well(world: Any) -> None:
    worker = await world.start()
    link = await world.link()
    worker.ledger.condition.break_down("nothing works")
    world.trouble = "the unit is gone"
    assert (await say(link, Action.RESET)).state is WorkerState.FAULTY
    world.trouble = ""
    result = await say(link, Action.RESET)
    assert (result.state, result.why) == (WorkerState.ACTIVE, "")
    await link.ask(world.ann.commit(world.ann.task()), Granted)


async def test_on_battery_it_is_held_back_and_comes_back_by_itself(world: Any, autojump_clock: Any) -> None:
    worker = await world.start()
    world.on_battery = True
    await trio.sleep(CHECK_S + 1)
    assert worker.ledger.condition.why == "on battery"
    world.on_battery = False
    await trio.sleep(CHECK_S + 1)
    assert worker.ledger.condition.serving
    assert world.lines == [
        "takes no new work: on battery (join --on-battery takes work anyway)",
        "now active",
    ]


async def test_quiet_hours_end_by_themselves(world: Any, autojump_clock: Any) -> None:
    worker = await world.start(quiet=("11:00-13:00",))
    await trio.sleep(1)
    assert worker.ledger.condition.why == "quiet hours until 13:00"
    world.local = world.local.replace(hour=13)
    await trio.sleep(CHECK_S + 1)
    assert worker.ledger.condition.serving


async def test_the_owner_sees_who_runs_what_and_others_only_their_own(world: Any) -> None:
    bob = world.scheduler()
    await world.start(allow=(bob.identity.peer_id,))
    link, other = await world.link(), await world.link(bob)
    await link.ask(world.ann.commit(world.ann.task(1)), Granted)
    await other.ask(bob.commit(bob.task(2), queue=True), Queued)
    reply = await link.ask(StatusRequest(), WorkerStatus)
    assert [(job.task, job.principal) for job in reply.jobs] == [
        ("c-1/1", world.ann.identity.peer_id),
        ("c-1/2", bob.identity.peer_id),
    ]
    assert reply.jobs[0].model == "m.onnx"
    assert (reply.running, reply.queue) == (1, 1)
    assert [job.task for job in (await other.ask(StatusRequest(), WorkerStatus)).jobs] == ["c-1/2"]
    assert (await other.ask(Control(action=Action.PAUSE), Denied)).reason is Reason.NOT_ALLOWED


async def test_a_passing_command_speaks_as_the_owner_by_a_permission_of_a_minute(world: Any) -> None:
    await world.start()
    visitor = world.scheduler()
    link = await world.link(visitor)
    assert (await link.ask(Control(action=Action.PAUSE), Denied)).reason is Reason.NOT_ALLOWED
    owner = world.ann.identity
    token = issue(owner, visitor.identity.peer_id, Grant(CONTROL, ttl_s=60), now=world.wall)
    await link.ask(ShowCredentials(issuer=owner.peer_id, token=token), CredentialsReply)
    assert (await say(link, Action.PAUSE)).why == "paused by its owner"
    assert (await link.ask(visitor.commit(visitor.task()), Denied)).reason is Reason.NOT_ALLOWED
    world.wall += 200
    assert (await link.ask(Control(action=Action.RESUME), Denied)).reason is Reason.NOT_ALLOWED


def signed(pool: Identity, number: int, *members: Any, until: int | None = None) -> ManifestMessage:
    lines = tuple(
        PoolMember(peer=each.identity.peer_id, role=Role.SUBMIT, name="n", until=until) for each in members
    )
    return sign_manifest(pool, PoolManifest(pool=pool.peer_id, name="lab", number=number, members=lines))


async def test_a_link_that_was_a_strangers_is_taken_up_when_permission_is_shown(world: Any) -> None:
    pool = Identity.from_seed("pool")
    world.pools = {pool.peer_id: "lab"}
    await world.start()
    bob = world.scheduler()
    link = await world.link(bob)
    await link.ask(bob.commit(bob.task()), Denied)
    await link.ask(signed(pool, 1, bob), CredentialsReply)
    await link.ask(bob.commit(bob.task(), attempt=2), Granted)
    world.device.go.set()
    assert (await bob.record()).outcome is RunOutcome.COMPLETE
    assert world.board.adverts[-1].pools == ("lab",)


async def test_only_a_newer_manifest_of_a_joined_pool_is_verified_and_stored_and_wakes_anybody(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, other = Identity.from_seed("pool"), Identity.from_seed("another pool")
    world.pools = {pool.peer_id: "lab"}
    worker = await world.start()
    checked, woken, stored = list[ManifestMessage](), list[int](), list[ManifestMessage]()

    def count(message: ManifestMessage) -> PoolManifest:
        checked.append(message)
        return verified(message)

    monkeypatch.setattr("node.access.revocation.verified", count)
    monkeypatch.setattr(worker.revocation, "_notify", lambda: woken.append(1))
    worker.revocation.store = stored.append
    bob = world.scheduler()
    link = await world.link(bob)
    first = signed(pool, 2, bob)
    await link.ask(first, CredentialsReply)
    await link.ask(first, CredentialsReply)
    await link.ask(signed(pool, 1), CredentialsReply)
    await link.ask(signed(other, 9, bob), Denied)
    worker.revocation.update(PoolManifest(pool=pool.peer_id, name="lab", number=2))
    assert (checked, stored, woken) == ([first], [first], [1])


@pytest.mark.parametrize("how", ["expires", "is revoked"])
async def test_what_runs_is_stopped_when_its_permission_ends(world: Any, how: str) -> None:
    pool = Identity.from_seed("pool")
    world.pools = {pool.peer_id: "lab"}
    worker = await world.start()
    bob, eve = world.scheduler(), world.scheduler()
    link = await world.link(bob)
    until = int(world.wall) + 30
    await link.ask(signed(pool, 1, bob, until=until), CredentialsReply)
    await link.ask(bob.commit(bob.task(1)), Granted)
    await link.ask(bob.commit(bob.task(2), queue=True), Queued)
    await bob.wait_for(Progress)
    if how == "expires":
        world.wall += 1_000
        over = await world.link(eve)  # any change makes the worker check the others' permissions
        await over.ask(signed(pool, 2, eve), CredentialsReply)
    else:
        worker.revocation.update(PoolManifest(pool=pool.peer_id, name="lab", number=2))
    record = await bob.record()
    assert (record.outcome, record.reason) == (RunOutcome.CANCELLED, Reason.NOT_ALLOWED)
    assert worker.ledger.queue == 0
    assert (await link.ask(bob.commit(bob.task(3)), Denied)).reason is Reason.NOT_ALLOWED


def test_a_pause_that_cannot_be_stored_is_an_error(tmp_path: Any) -> None:
    (tmp_path / "paused").mkdir()
    pause = Pause(tmp_path / "paused")
    with pytest.raises(ResourceError):
        pause.set(False)
    assert not pause.on
