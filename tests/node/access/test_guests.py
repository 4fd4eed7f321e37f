"""What a guest with a permission attempts at a real worker: others' models, others' names, revoked permissions, endless runs."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from node.capacity.ledger import Ledger
from node.conversation.commands import DiskCommand, WriteRecord
from node.conversation.links import MAX_CAMPAIGNS, LinkTable
from node.conversation.requests import max_seconds
from node.serve.owner_control import OwnerControl, OwnerSenses, Pause
from node.settings.rules import Rules
from node.store.files import FileFolder
from node.store.model_files import PROOF, ModelAccess, is_end_of, proof_offset
from node.store.outbox_files import OutboxFiles
from protocol.errors import Unreachable
from protocol.messages.pool import ManifestMessage, PoolManifest, PoolMember, RevokedPeer
from protocol.messages.work import (
    Action,
    AdoptReply,
    AdoptRequest,
    Cancel,
    Control,
    Denied,
    Granted,
    Probe,
    Progress,
    Queued,
    Quote,
    Release,
    Renew,
    Renewed,
    Result,
    Shape,
    ShowCredentials,
    StatusRequest,
    WorkerStatus,
)
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Timeouts
from protocol.words import Reason, Right, Role
from results.row.stats import MAX_LAUNCHES
from swarm.base.units import parse_duration, show_duration
from swarm.net.identity import Identity
from swarm.pools.manifests import sign_manifest, verified
from swarm.pools.tokens import Grant, issue
from tests.node.conftest import CONTENT

POOL = Identity.from_seed("pool")
OTHER_POOL = Identity.from_seed("another pool")
WORK = frozenset({Right.SUBMIT, Right.STATUS})


def signed(world: Any, key: Identity, *members: PoolMember, revoked: str | None = None) -> ManifestMessage:
    """The pool's next manifest, with these members and all earlier ones."""
    world.numbers = getattr(world, "numbers", 0) + 1
    world.members = (*getattr(world, "members", ()), *members)
    lines = tuple({member.peer: member for member in world.members if member.peer != revoked}.values())
    gone = (RevokedPeer(peer=revoked, until=2**40),) if revoked is not None else ()
    manifest = PoolManifest(pool=key.peer_id, name="lab", number=world.numbers, members=lines, revoked=gone)
    return sign_manifest(key, manifest)


def member(hand: Any, **limits: Any) -> PoolMember:
    return PoolMember(peer=hand.identity.peer_id, role=Role.SUBMIT, name="guest", **limits)


async def guest_of(world: Any, owner: Identity | None = None, **limits: Any) -> tuple[Any, Any]:
    """A scheduler and its link. It has shown the worker its membership of the pool, or a token issued by `owner`."""
    hand = world.scheduler()
    link = await world.link(hand)
    if owner is None:
        message: Any = signed(world, POOL, member(hand, **limits))
    else:
        token = issue(owner, hand.identity.peer_id, Grant(WORK, **limits), now=world.wall)
        message = ShowCredentials(issuer=owner.peer_id, token=token)
    assert not isinstance(await link.call(message), Denied)
    return hand, link


MODEL = hashlib.sha256(CONTENT).hexdigest()


async def test_whoever_only_knows_the_hash_of_anothers_model_is_not_given_it(world: Any) -> None:
    world.pools = {POOL.peer_id: "lab"}
    worker = await world.start()
    link = await world.link()
    await link.ask(world.ann.commit(world.ann.task(1)), Granted)
    await world.ann.wait_for(Progress, 2)
    while worker.advert().models != (MODEL,) or not worker.sharing.cache.access.knows(
        MODEL, world.ann.identity.peer_id
    ):
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert isinstance(worker.sharing.find(world.ann.identity.peer_id, MODEL), Path), (
        "who brought it may have it back"
    )
    world.device.go.set()
    await world.ann.record()
    guest, theirs = await guest_of(world)
    guest.content = None
    assert worker.sharing.find(guest.identity.peer_id, MODEL) is None
    await theirs.ask(guest.commit(guest.task(1, campaign="c-guest", task="c-guest/1")), Granted)
    assert worker.sharing.find(guest.identity.peer_id, MODEL) is None, "a task that names it"
    await guest.wait_for(Result)
    assert worker.sharing.find(guest.identity.peer_id, MODEL) is None, "nor once it ran here"
    honest, again = await guest_of(world)
    world.device.go.clear()
    await again.ask(honest.commit(honest.task(1, campaign="c-h", task="c-h/1")), Granted)
    await honest.wait_for(Progress, 2)
    while not worker.sharing.cache.access.knows(MODEL, honest.identity.peer_id):
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert isinstance(worker.sharing.find(honest.identity.peer_id, MODEL), Path), (
        "who shows that it has it may"
    )


async def test_what_somebody_shows_of_a_model_must_be_its_end(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(CONTENT)
    assert is_end_of(path, CONTENT)
    assert not is_end_of(path, CONTENT[:-1])
    assert not is_end_of(path, CONTENT[:-1] + b"x")
    assert not is_end_of(tmp_path / "none", b"x")
    assert (proof_offset(5_000), proof_offset(PROOF + 7)) == (0, 7)


async def test_whose_a_model_is_is_known_over_restarts_and_forgotten_with_the_model(tmp_path: Path) -> None:
    here = {"a" * 64, "b" * 64}
    whose = ModelAccess(tmp_path / "whose.json", here.__contains__)
    whose.note("a" * 64, "ann")
    whose.note("b" * 64, "bob")
    here.remove("a" * 64)
    whose.note("b" * 64, "ann")
    again = ModelAccess(tmp_path / "whose.json", here.__contains__)
    assert [again.knows("b" * 64, who) for who in ("ann", "bob", "eve")] == [True, True, False]
    assert not again.knows("a" * 64, "ann")
    (tmp_path / "whose.json").write_bytes(b"[junk")
    assert not ModelAccess(tmp_path / "whose.json", here.__contains__).knows("b" * 64, "ann")


async def test_nobody_keeps_or_ends_anothers_lease_or_gets_its_record(world: Any) -> None:
    world.pools = {POOL.peer_id: "lab"}
    worker = await world.start()
    link = await world.link()
    lease = await link.ask(world.ann.commit(world.ann.task(1)), Granted)
    guest, theirs = await guest_of(world)
    one = (world.held(lease),)
    assert [lost.reason for lost in (await theirs.ask(Renew(held=one), Renewed)).lost] == [Reason.UNKNOWN]
    for message in (Cancel(held=one), Release(held=one)):
        await theirs.call(message)
        assert str(worker.ledger.allocations()[0].state) == "running"
    world.device.go.set()
    result = await world.ann.wait_for(Result)
    assert worker.sharing.find(guest.identity.peer_id, result.sha256) is None


async def test_a_task_of_others_that_could_go_on_for_longer_than_the_owner_lets_it_does_not_fit(
    world: Any,
) -> None:
    world.pools = {POOL.peer_id: "lab"}
    worker = await world.start(max_duration="20m")
    guest, link = await guest_of(world)
    long = {"measure": Measure(runs=10, loads=3), "timeouts": Timeouts(fetch_s=300, load_s=200, run_s=301)}
    refused = await link.ask(guest.commit(guest.task(1, **long)), Denied)
    assert refused.reason is Reason.DOES_NOT_FIT
    assert refused.unmet == (
        (
            "the task's limits (fetch, loads, run) add up to 20 min 1 s;"
            " this device's owner lets others use it for 20 min at a time"
        ),
    )
    short = {**long, "timeouts": Timeouts(fetch_s=300, load_s=200, run_s=300, queue_s=1e6)}
    assert max_seconds(guest.task(1, **short)) == 1200
    by_precision = {**short, "measure": Measure(precision=0.02)}
    assert max_seconds(guest.task(1, **by_precision)) == 600 + 200 * MAX_LAUNCHES
    await link.ask(guest.commit(guest.task(1, **short)), Granted)
    (place,) = worker.ledger.allocations()
    assert place.request.max_queue_s == 1200.0, "nor does it wait for longer"
    own = await world.link()
    await own.ask(world.ann.commit(world.ann.task(1, **long), queue=True), Queued)


def test_durations_are_read_and_shown_as_people_write_them() -> None:
    assert [parse_duration(text) for text in ("90s", "30m", "1.5 h", "2d")] == [90, 1800, 5400, 172_800]
    assert [show_duration(each) for each in (9.5, 90, 3600, 5400, 172_800)] == [
        "9.5 s",
        "1 min 30 s",
        "1 h",
        "1 h 30 min",
        "2 d",
    ]
    for text in ("", "90", "0s", "-1h", "1y", "400d"):
        with pytest.raises(ValueError, match=r"such as 90s, 10m, 2h, 90d|between 1s and 365d"):
            parse_duration(text)


async def test_a_link_that_speaks_of_campaigns_without_end_leaves_a_bounded_trace(world: Any) -> None:
    world.pools = {POOL.peer_id: "lab"}
    worker = await world.start()
    guest, link = await guest_of(world)
    for number in range(2 * MAX_CAMPAIGNS):
        await link.ask(AdoptRequest(campaign=f"c-{number}", epoch=1), AdoptReply)
    links: LinkTable = worker.conversation.links
    (theirs,) = links.of(guest.identity.peer_id)
    assert len(links.epochs(theirs)) == MAX_CAMPAIGNS


async def test_who_acts_for_the_owner_in_one_campaign_sees_that_one_and_no_names_of_others(
    world: Any,
) -> None:
    world.pools = {POOL.peer_id: "lab"}
    await world.start()
    member, theirs = await guest_of(world)
    await theirs.ask(member.commit(member.task(1, campaign="secret", task="secret/1"), priority=20), Granted)
    _, link = await guest_of(world, world.ann.identity, campaigns=frozenset({"c-1"}))
    own = await world.link()
    await own.ask(world.ann.commit(world.ann.task(1), queue=True, priority=25), Queued)
    await own.ask(
        world.ann.commit(world.ann.task(2, campaign="c-2", task="c-2/2"), queue=True, priority=25), Queued
    )
    standing = await link.ask(StatusRequest(), WorkerStatus)
    assert [job.task for job in standing.jobs] == ["c-1/1"]
    assert [job.task for job in (await own.ask(StatusRequest(), WorkerStatus)).jobs] == [
        "secret/1",
        "c-1/1",
        "c-2/2",
    ]
    ask = Probe(
        campaign="c-1",
        shapes=(Shape(unit="CPU (ONNX)", requirement=Requirement(), model="a" * 64, size=1, priority=90),),
    )
    assert (await link.ask(ask, Quote)).shapes[0].preempts == "a run at priority 20"
    assert (await own.ask(ask, Quote)).shapes[0].preempts == "secret/1 at priority 20"


async def test_a_run_ends_when_what_it_rested_on_is_revoked_whatever_else_its_scheduler_may(
    world: Any,
) -> None:
    world.pools = {POOL.peer_id: "lab", OTHER_POOL.peer_id: "other"}
    worker = await world.start()
    guest, link = await guest_of(world)
    less = signed(world, OTHER_POOL, member(guest, priority=1, slots=1))
    assert not isinstance(await link.call(less), Denied)
    for number in range(3):
        await link.call(guest.commit(guest.task(number), queue=True, priority=100))
    assert len(worker.ledger.allocations()) == 3
    worker.revocation.update(verified(signed(world, POOL, revoked=guest.identity.peer_id)))
    assert {str(place.state) for place in worker.ledger.allocations()} <= {"stopping", "reporting"}
    assert isinstance(await link.call(guest.commit(guest.task(7), queue=True, priority=1)), (Granted, Queued))


async def test_a_run_goes_on_when_the_membership_was_renewed_before_the_old_one_ended(world: Any) -> None:
    world.pools = {POOL.peer_id: "lab"}
    worker = await world.start()
    guest, link = await guest_of(world, until=int(world.wall) + 60)
    await link.ask(guest.commit(guest.task(1)), Granted)
    assert not isinstance(await link.call(signed(world, POOL, member(guest))), Denied)
    world.wall += 1_000.0
    worker.revocation.update(verified(signed(world, POOL)))
    (place,) = worker.ledger.allocations()
    assert str(place.state) == "running"


async def test_a_manifest_of_another_pool_or_without_the_sender_or_forged_opens_nothing(world: Any) -> None:
    world.pools = {POOL.peer_id: "lab"}
    await world.start()
    hand = world.scheduler()
    link = await world.link(hand)
    other = await link.ask(signed(world, OTHER_POOL, member(hand)), Denied)
    assert "does not work for lab" in other.detail
    world.members = ()
    assert isinstance(await link.call(signed(world, POOL)), Denied)
    good = signed(world, POOL, member(hand))
    with pytest.raises(Unreachable):
        await link.call(good.model_copy(update={"signature": b"x" * 64}))
    fresh = await world.link(hand)
    assert not isinstance(await fresh.call(good), Denied)


class SlowDisk(OutboxFiles):
    """An outbox whose writes block until the test releases them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(FileFolder(folder))
        self.writing, self.go_on = threading.Event(), threading.Event()

    def carry_out(self, command: DiskCommand) -> bytes | None:
        if isinstance(command, WriteRecord):
            self.writing.set()
            self.go_on.wait()
        return super().carry_out(command)


async def test_a_result_that_was_going_to_disk_when_its_campaign_was_adopted_goes_to_the_adopter(
    world: Any,
) -> None:
    world.open_outbox = SlowDisk
    await world.start()
    link = await world.link()
    await link.ask(world.ann.commit(world.ann.task()), Granted)
    world.device.go.set()
    with trio.fail_after(5):
        await trio.to_thread.run_sync(world.parts.outbox.writing.wait)
    await link.aclose()
    adopter, theirs = await guest_of(world, world.ann.identity, campaigns=frozenset({"c-1"}))
    adopted = await theirs.ask(AdoptRequest(campaign="c-1", epoch=2), AdoptReply)
    assert [lease.reporting for lease in adopted.leases] == [True]
    world.parts.outbox.go_on.set()
    await adopter.wait_for(Result)
    assert not world.ann.count(Result)


async def test_a_pause_that_could_not_be_written_is_written_when_repeated(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "paused"
    path.parent.write_text("in the way")
    hand = OwnerControl(
        Ledger(1),
        Rules(),
        Pause(path),
        OwnerSenses(on_battery=lambda: False),
        trio.Event(),
        lambda: None,
        lambda reason: None,
        trio.lowlevel.checkpoint,
        lambda: 0,
        lambda text: None,
    )
    first = await hand.do(Control(action=Action.PAUSE))
    assert isinstance(first, Denied)
    assert first.reason is Reason.DISK_FULL
    path.parent.unlink()
    path.parent.mkdir()
    assert await hand.do(Control(action=Action.PAUSE)) is None
    assert path.exists()
