"""What the worker answers and sends: it promises nothing before it is true, and loses no result."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.conversation.commands import ForgetFiles
from node.conversation.conversation import LINK_WAIT_S, OFFER_S
from node.conversation.delivery import RESEND_S
from protocol.formats.phase import Phase
from protocol.messages.forget import Forget
from protocol.messages.work import (
    Accepted,
    AdoptReply,
    AdoptRequest,
    Cancel,
    Commit,
    Denied,
    Granted,
    HeldLease,
    LaunchEnded,
    ListLeases,
    Progress,
    Queued,
    Ready,
    Renew,
    Renewed,
    Result,
    Reveal,
    RevealRequest,
    Stale,
    Start,
    StatusRequest,
    Stopped,
    WorkerStatus,
)
from protocol.values.lease import LEASE_TTL_S, Fence
from protocol.values.reading import DeviceReading
from protocol.values.requirement import Clause, Op, Requirement
from protocol.values.task import Measure, Model, Task, Timeouts, task_body
from protocol.wire.base import MAX_INLINE, Message
from protocol.words import Reason
from tests.node.conversation.parts import ANN, BOB, UNIT, FakeLink, Shell, commit, item


def results(shell: Shell) -> list[str]:
    """The tasks of the results being sent."""
    return [call.message.task for call in shell.calls if isinstance(call.message, Result)]


def granted(shell: Shell, link: FakeLink, number: int = 1) -> Granted:
    reply = shell.ask(link, commit(number))
    assert isinstance(reply, Granted)
    return reply


# -- results -------------------------------------------------------------------------------------------------------------


def test_a_result_is_sent_once_it_is_on_disk_and_no_sooner(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    lease = granted(shell, shell.connect()).lease
    shell.hold_disk = True
    shell.end_run(lease)
    assert not shell.calls
    shell.run_disk()
    assert results(shell) == ["c-1/1"]
    assert len(Shell(tmp_path).outbox) == 1, "a crash now loses nothing"
    shell.answer(Accepted())
    shell.run_disk()
    assert len(shell.outbox) == 0
    assert not shell.conversation.ledger.allocations()


def test_a_result_that_can_never_be_delivered_stands_in_nobodys_way(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    for number in (1, 2, 3):
        shell.put(item(bytes([number]), task=f"c-1/{number}", stored=number), bytes([number]))
    first = shell.connect()
    assert results(shell) == ["c-1/1"]
    shell.answer(None)
    assert shell.dropped == [first]
    assert not shell.calls
    shell.connect()
    for task in ("c-1/2", "c-1/3"):
        assert results(shell) == [task]
        shell.answer(Accepted())
    assert results(shell) == ["c-1/1"], "and it is tried again"
    shell.answer(Denied(reason=Reason.UNKNOWN))
    assert len(shell.outbox) == 1, "an odd answer settles nothing"
    assert len(shell.dropped) == 2


def test_a_lost_acknowledgement_has_the_result_sent_again(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.put(item(b"one"), b"one")
    shell.connect()
    shell.answer(None)
    shell.connect()
    assert results(shell) == ["c-1/1"]


def test_a_result_that_cannot_be_read_now_is_kept_and_sent_later(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    record = shell.put(item(b"one"), b"one")
    shell.put(item(b"two", task="c-1/2"), b"two")
    record.unlink()
    record.mkdir()  # reading fails, though the record exists
    shell.connect()
    assert results(shell) == ["c-1/2"]
    shell.answer(Accepted())
    assert not shell.dropped
    record.rmdir()
    record.write_bytes(b"one")
    shell.pass_time(RESEND_S - 1)
    assert not shell.calls
    shell.pass_time(1)
    assert results(shell) == ["c-1/1"]


def test_a_result_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    large = bytes(MAX_INLINE + 1)
    shell.put(item(b"one"), b"one").unlink()
    shell.put(item(large, task="c-1/2"), large).unlink()
    shell.connect()
    assert not shell.calls
    assert len(shell.outbox) == 0


def test_a_large_record_is_only_named(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    large = bytes(MAX_INLINE + 1)
    shell.put(item(large), large)
    shell.connect()
    assert isinstance(shell.calls[0].message, Result)
    assert shell.calls[0].message.body is None


def test_on_a_full_disk_a_small_result_is_held_in_memory(tmp_path: Path) -> None:
    folder = tmp_path / "outbox"
    shell = Shell(folder)
    link = shell.connect()
    lease = granted(shell, link).lease
    folder.rmdir()
    folder.write_text("a file where the folder was: nothing can be written below it")
    shell.end_run(lease)
    assert results(shell) == ["c-1/1"]
    message = shell.calls[0].message
    assert isinstance(message, Result)
    assert shell.outbox.in_memory(message.sha256) == message.body
    shell.answer(Stale(reason=Reason.UNKNOWN))
    assert len(shell.outbox) == 0
    page = shell.ask(link, ListLeases(campaign="c-1"))
    assert isinstance(page, AdoptReply)
    assert [lease.settled for lease in page.leases] == [True], "whoever adopts the campaign may have it"
    lease = granted(shell, link, 2).lease
    shell.end_run(lease, series={"x_ns": bytes(MAX_INLINE + 1)})
    assert not shell.calls, "a large one is lost"
    assert not shell.conversation.busy
    assert not shell.conversation.ledger.allocations()


@pytest.mark.parametrize(
    ("answer", "epoch", "stays"),
    [
        (Accepted(), 1, 1),
        (Stale(reason=Reason.FENCED), 1, 1),
        (Stale(reason=Reason.CANCELLED), 1, 0),
        (Stale(reason=Reason.BAD_REQUEST), 1, 0),
        (Stale(reason=Reason.CANCELLED), None, 1),
    ],
)
def test_what_could_be_of_use_to_an_adopter_is_kept(
    tmp_path: Path, answer: Message, epoch: int | None, stays: int
) -> None:
    shell = Shell(tmp_path)
    shell.put(item(b"one"), b"one")
    link = FakeLink()
    if epoch is not None:
        shell.conversation.links.set_epoch(link, "c-1", epoch)
    shell.conversation.connected(link)
    shell.flush()
    shell.answer(answer)
    assert len(shell.outbox) == 0
    assert len(shell.outbox.of("c-1", ANN)) == len(Shell(tmp_path).outbox.of("c-1", ANN)) == stays


# -- two machines with one key -------------------------------------------------------------------------------------------


def test_of_two_machines_with_one_key_only_the_one_that_adopted_gets_the_campaigns_results(
    tmp_path: Path,
) -> None:
    shell = Shell(tmp_path)
    new, old, silent = (shell.connect() for _ in range(3))  # the newest link is not the one that counts
    assert not isinstance(shell.ask(old, AdoptRequest(campaign="c-1", epoch=1)), Denied)
    assert not isinstance(shell.ask(new, AdoptRequest(campaign="c-1", epoch=2)), Denied)
    assert isinstance(shell.ask(old, AdoptRequest(campaign="c-1", epoch=1)), Denied)
    for number in (1, 2):
        shell.put(item(bytes([number]), task=f"c-1/{number}"), bytes([number]))
        assert [call.link for call in shell.calls] == [new]
        shell.answer(Accepted())
    shell.conversation.disconnected(new)
    shell.put(item(b"four", task="c-1/4"), b"four")
    assert [call.link for call in shell.calls] == [silent], (
        "it may be the adopter, come back, that has not spoken yet"
    )


def test_of_two_machines_with_one_key_only_the_one_that_adopted_is_offered_a_slot(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    old, new = shell.connect(), shell.connect()
    first = granted(shell, old)
    ticket = shell.ask(old, commit(2, queue=True))
    assert isinstance(ticket, Queued)
    assert isinstance(shell.ask(new, AdoptRequest(campaign="c-1", epoch=2)), AdoptReply)
    shell.conversation.disconnected(new)
    shell.hold_disk = True  # the result does not matter here
    shell.end_run(first.lease)
    assert not shell.calls
    shell.pass_time(0.5)
    assert not shell.calls, "the worker comes back to it again and again: not without a pause"
    back = shell.connect()
    shell.pass_time(1.0)
    (call,) = shell.calls
    assert (call.link, type(call.message)) == (back, Ready)
    shell.answer(Start())
    assert shell.started == [first.lease, ticket.lease]


def test_an_offer_that_is_not_answered_drops_the_link_and_is_made_again(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    link = shell.connect()
    first = granted(shell, link)
    assert isinstance(shell.ask(link, commit(2, queue=True)), Queued)
    shell.hold_disk = True
    shell.end_run(first.lease)
    assert [(type(call.message), call.timeout_s) for call in shell.calls] == [(Ready, OFFER_S)]
    shell.answer(None)
    assert shell.dropped == [link]
    assert not shell.calls
    shell.connect()
    assert [type(call.message) for call in shell.calls] == [Ready]


# -- adoption ------------------------------------------------------------------------------------------------------------


def delegate(shell: Shell) -> FakeLink:
    """Let Bob act for Ann."""
    shell.principals[BOB] = ANN
    return shell.connect(BOB)


def test_the_adopter_gets_what_waits_and_on_request_what_was_settled(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    done, waits, other = item(b"done", stored=1.0), item(b"waits", stored=2.0), item(b"x", campaign="c-2")
    for head, body in ((done, b"done"), (waits, b"waits"), (other, b"x")):
        shell.put(head, body)
    shell.connect()
    shell.answer(Accepted())
    assert done.sha256 in shell.outbox._settled
    shell.answer(None)
    bob = delegate(shell)
    reply = shell.ask(bob, AdoptRequest(campaign="c-1", epoch=2))
    assert isinstance(reply, AdoptReply)
    assert [(lease.reporting, lease.settled) for lease in reply.leases] == [(False, True), (True, False)]
    assert [head.sha256 for head in shell.outbox.waiting(BOB)] == [waits.sha256]
    shell.ask(bob, AdoptRequest(campaign="c-1", epoch=2, again=True))
    for outbox in (shell.outbox, Shell(tmp_path).outbox):
        assert [head.sha256 for head in outbox.waiting(BOB)] == [done.sha256, waits.sha256]
        assert {head.principal for head in outbox.waiting(BOB)} == {ANN}
        assert outbox.waiting(ANN) == [other]


def test_an_adoption_is_answered_when_the_results_are_the_adopters_on_disk_too(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.put(item(b"one"), b"one")
    bob = delegate(shell)
    shell.hold_disk = True
    assert shell.ask(bob, AdoptRequest(campaign="c-1", epoch=2)) is None
    request = shell.last_request
    shell.run_disk()
    assert isinstance(shell.replies[request], AdoptReply)
    assert len(Shell(tmp_path).outbox.waiting(BOB)) == 1


def test_a_disk_that_takes_nothing_leaves_the_results_where_they_are(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "outbox")
    shell.put(item(b"one"), b"one")
    (tmp_path / "outbox").rename(tmp_path / "away")
    (tmp_path / "outbox").write_text("in the way")
    reply = shell.ask(delegate(shell), AdoptRequest(campaign="c-1", epoch=2))
    assert isinstance(reply, AdoptReply)
    assert shell.outbox.waiting(BOB) == []
    assert len(shell.outbox.waiting(ANN)) == 1


def test_nobody_else_gets_a_campaigns_results(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.put(item(b"one"), b"one")
    reply = shell.ask(shell.connect(BOB), AdoptRequest(campaign="c-1", epoch=2, again=True))
    assert isinstance(reply, AdoptReply)
    assert reply.leases == ()
    assert shell.outbox.waiting(BOB) == []


def test_a_result_whose_campaign_is_adopted_while_it_is_under_way_stays_for_the_adopter(
    tmp_path: Path,
) -> None:
    shell = Shell(tmp_path)
    shell.put(item(b"one"), b"one")
    shell.connect()
    shell.ask(delegate(shell), AdoptRequest(campaign="c-1", epoch=2))
    shell.answer(Accepted())
    assert [head.task for head in shell.outbox.waiting(BOB)] == ["c-1/1"]


def test_a_result_whose_campaign_is_adopted_while_it_goes_to_disk_is_the_adopters(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    lease = granted(shell, shell.connect()).lease
    bob = delegate(shell)
    shell.hold_disk = True
    shell.end_run(lease)
    reply = shell.ask(bob, AdoptRequest(campaign="c-1", epoch=2))
    assert isinstance(reply, AdoptReply)
    assert [live.reporting for live in reply.leases] == [True]
    shell.run_disk()
    assert [call.link for call in shell.calls] == [bob]
    assert len(Shell(tmp_path).outbox.waiting(BOB)) == 1


def test_a_result_that_goes_between_two_pages_hides_no_other(tmp_path: Path) -> None:
    shell = Shell(tmp_path, incarnation=3)
    for number in range(1, 101):
        body = b"%d" % number
        fence = Fence(incarnation=1 + number // 60, number=number)
        shell.put(item(body, task=f"c-1/{number}", lease=f"w-1.{number}", fence=fence), body)
    link = FakeLink()
    first = shell.ask(link, ListLeases(campaign="c-1"))
    assert isinstance(first, AdoptReply)
    assert first.cursor is not None
    shell.outbox.settle(item(b"1").sha256)
    second = shell.ask(link, ListLeases(campaign="c-1", cursor=first.cursor))
    assert isinstance(second, AdoptReply)
    listed = [lease.task for page in (first, second) for lease in page.leases]
    assert listed == [f"c-1/{number}" for number in range(1, 101)]
    assert second.cursor is None


# -- runs ----------------------------------------------------------------------------------------------------------------


def test_a_cancel_is_answered_when_the_processes_are_dead(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    link = shell.connect()
    lease = granted(shell, link)
    assert shell.ask(link, Cancel(held=(HeldLease(lease=lease.lease, fence=lease.fence),))) is None
    request = shell.last_request
    assert shell.killed == [lease.lease]
    shell.conversation.processes_ended(lease.lease, shell.record(lease.lease))
    shell.flush()
    assert shell.replies[request] == Stopped(leases=(lease.lease,))


def test_a_cancel_of_two_runs_is_answered_when_both_are_dead(tmp_path: Path) -> None:
    shell = Shell(tmp_path, slots=2)
    link = shell.connect()
    first, second = granted(shell, link), granted(shell, link, 2)
    held = tuple(HeldLease(lease=lease.lease, fence=lease.fence) for lease in (first, second))
    assert shell.ask(link, Cancel(held=held)) is None
    request = shell.last_request
    shell.conversation.processes_ended(first.lease, shell.record(first.lease))
    shell.flush()
    assert request not in shell.replies
    shell.conversation.processes_ended(second.lease, shell.record(second.lease))
    shell.flush()
    assert shell.replies[request] == Stopped(leases=(first.lease, second.lease))


def test_a_stale_epochs_cancel_ends_nothing(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    old = shell.connect()
    lease = granted(shell, old)
    shell.ask(shell.connect(), AdoptRequest(campaign="c-1", epoch=2))
    reply = shell.ask(old, Cancel(held=(HeldLease(lease=lease.lease, fence=lease.fence),)))
    assert isinstance(reply, Denied)
    assert reply.reason is Reason.STALE_EPOCH
    assert not shell.killed


def test_a_stale_epochs_renewal_is_lost(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    old = shell.connect()
    lease = granted(shell, old)
    shell.ask(shell.connect(), AdoptRequest(campaign="c-1", epoch=2))
    reply = shell.ask(old, Renew(held=(HeldLease(lease=lease.lease, fence=lease.fence),)))
    assert isinstance(reply, Renewed)
    assert not reply.renewed
    assert [lost.reason for lost in reply.lost] == [Reason.STALE_EPOCH]


def test_progress_goes_over_the_link_that_spoke_of_the_campaign(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    link = shell.connect()
    lease = granted(shell, link).lease
    shell.connect()
    shell.conversation.report_progress(lease, Phase.LOAD)
    shell.conversation.report_progress(lease, Phase.RUN, 1, 10)
    shell.flush()
    assert [note.link for note in shell.notes] == [link, link]
    assert [note.message.seq for note in shell.notes if isinstance(note.message, Progress)] == [1, 2]
    assert shell.conversation.phase(lease) is Phase.RUN
    shell.conversation.disconnected(link)


def readings(shell: Shell) -> list[Progress]:
    notes = [note.message for note in shell.notes if isinstance(note.message, Progress)]
    return [note for note in notes if note.reading is not None]


def test_a_reading_goes_with_the_newest_progress_of_a_run_that_is_under_way(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    lease = granted(shell, shell.connect()).lease
    seen = DeviceReading(cpu=0.5, memory=2**30)
    shell.conversation.report_reading(seen)
    shell.conversation.report_progress(lease, Phase.QUEUED)
    shell.conversation.report_reading(seen)
    shell.flush()
    assert not readings(shell), "until it has the device, it would see another's run"
    shell.conversation.report_progress(lease, Phase.RUN, 3, 10, 1.5)
    shell.conversation.report_reading(seen)
    shell.flush()
    (note,) = readings(shell)
    assert (note.reading, note.phase, note.done, note.total, note.median_ms) == (seen, Phase.RUN, 3, 10, 1.5)
    assert note.seq == 3
    shell.conversation.set_holding(lease, False)
    shell.conversation.report_reading(seen)
    shell.flush()
    assert len(readings(shell)) == 1, "in a gap between launches it may be of another's run"
    shell.conversation.set_holding(lease, True)
    shell.conversation.report_progress(lease, Phase.CHECK)
    shell.flush()
    assert shell.notes[-1].message.reading is None, "a reading is not told twice"
    assert shell.notes[-1].message.seq == 4
    shell.conversation.processes_ended(lease, shell.record(lease))
    shell.conversation.report_reading(seen)
    shell.flush()
    assert len(readings(shell)) == 1


def test_a_stranger_is_shown_no_sensors(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.strange = True
    lease = granted(shell, shell.connect()).lease
    shell.conversation.report_progress(lease, Phase.RUN, 3, 10)
    shell.conversation.report_reading(DeviceReading(cpu=0.5))
    shell.flush()
    assert len(shell.notes) == 1
    assert not readings(shell)


@pytest.mark.parametrize(("owner", "shown"), [(True, True), (False, False)])
def test_the_status_shows_the_sensors_to_the_owner_alone(tmp_path: Path, owner: bool, shown: bool) -> None:
    shell = Shell(tmp_path)
    shell.owner = owner
    status = shell.ask(shell.connect(), StatusRequest())
    assert isinstance(status, WorkerStatus)
    assert (status.reading is not None) == shown


# -- witnessed runs ------------------------------------------------------------------------------------------------------


def test_a_reveal_is_asked_for_until_it_is_answered(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    link = shell.connect()
    reply = granted(shell, link)
    shell.conversation.ask_reveal(reply.lease)
    shell.flush()
    request = RevealRequest(lease=reply.lease, fence=reply.fence)
    for _ in range(2):
        assert [call.message for call in shell.calls] == [request]
        shell.answer(None)
        assert not shell.calls
        shell.pass_time(LINK_WAIT_S)
    shell.answer(Reveal(opening=bytes(32), reveal=bytes(32)))
    assert [command.lease for command in shell.revealed] == [reply.lease]
    shell.pass_time(60)
    assert not shell.calls
    shell.conversation.ask_reveal(reply.lease)  # the next launch
    shell.flush()
    assert [call.message for call in shell.calls] == [request.model_copy(update={"again": True})]


def test_a_reveal_is_not_asked_for_once_its_run_has_ended(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    reply = granted(shell, shell.connect())
    shell.conversation.ask_reveal(reply.lease)
    shell.flush()
    shell.answer(None)
    shell.end_run(reply.lease)
    shell.answer(Accepted())
    shell.pass_time(LINK_WAIT_S)
    assert not shell.calls
    assert not shell.revealed


def test_the_end_of_a_launch_goes_out_as_a_note(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    reply = granted(shell, shell.connect())
    shell.conversation.report_launch(reply.lease, 2, "c" * 64)
    shell.flush()
    note = LaunchEnded(lease=reply.lease, fence=reply.fence, launch=2, digest="c" * 64)
    assert [each.message for each in shell.notes] == [note]


# -- forgetting ----------------------------------------------------------------------------------------------------------


FORGET = Forget(campaign="c-1", epoch=1)


def forgotten(shell: Shell, link: FakeLink, message: Forget = FORGET) -> ForgetFiles | Message | None:
    """The order to remove files, or the refusal."""
    before = len(shell.forgets)
    reply = shell.ask(link, message)
    return shell.forgets[-1] if len(shell.forgets) > before else reply


def test_a_forgotten_campaign_leaves_no_record_and_no_others_go(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    link = shell.connect()
    shell.end_run(granted(shell, link).lease)
    shell.answer(Accepted())
    shell.end_run(granted(shell, link, 2).lease)
    shell.put(item(b"other", campaign="c-2", task="c-2/1"), b"other")
    assert len(shell.outbox.of("c-1", ANN)) == 2
    todo = forgotten(shell, link)
    assert isinstance(todo, ForgetFiles)
    assert (todo.principal, todo.campaign, todo.records) == (ANN, "c-1", 2)
    assert not shell.conversation.ledger.allocations(), "what waited for its result to be taken waits no more"
    later = Shell(tmp_path)
    assert not later.outbox.of("c-1", ANN)
    assert len(later.outbox.of("c-2", ANN)) == 1
    again = forgotten(shell, link)
    assert isinstance(again, ForgetFiles)
    assert again.records == 0


def test_a_campaign_is_not_forgotten_before_its_records_are_gone(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    link = shell.connect()
    shell.end_run(granted(shell, link).lease)
    shell.hold_disk = True
    assert forgotten(shell, link) is None
    shell.run_disk()
    assert len(shell.forgets) == 1


def test_only_the_campaigns_own_scheduler_has_it_forgotten_and_only_when_nothing_of_it_runs(
    tmp_path: Path,
) -> None:
    shell = Shell(tmp_path)
    link = shell.connect()
    lease = granted(shell, link).lease
    running = forgotten(shell, link)
    assert isinstance(running, Denied)
    assert (running.reason, running.retry_s) == (Reason.BUSY, LEASE_TTL_S)
    shell.end_run(lease)
    shell.principals[BOB] = ANN  # Bob acts for Ann
    delegate = forgotten(shell, shell.connect(BOB))
    assert isinstance(delegate, Denied)
    assert delegate.reason is Reason.NOT_ALLOWED
    shell.principals[BOB] = BOB
    theirs = forgotten(shell, shell.connect(BOB))
    assert isinstance(theirs, ForgetFiles)
    assert (theirs.principal, theirs.records) == (BOB, 0), "he has no campaign of that id here"
    assert len(shell.outbox.of("c-1", ANN)) == 1


def test_a_campaign_that_another_scheduler_leads_is_not_forgotten(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    link = shell.connect()
    shell.end_run(granted(shell, link).lease)
    shell.principals[BOB] = ANN
    assert isinstance(shell.ask(shell.connect(BOB), AdoptRequest(campaign="c-1", epoch=2)), AdoptReply)
    shell.answer(Accepted())  # to what went out before; it goes to the adopter all the same
    shell.pass_time(RESEND_S)
    shell.answer(Accepted())
    assert [settled for _, settled in shell.outbox.of("c-1", ANN)] == [True]
    led = forgotten(shell, link)
    assert isinstance(led, Denied)
    assert led.reason is Reason.STALE_EPOCH


def test_a_campaign_whose_results_wait_for_another_scheduler_is_not_forgotten(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.put(item(b"one", peer=BOB, owner=ANN), b"one")  # as an adopter left it, before a restart
    waiting = forgotten(shell, shell.connect())
    assert isinstance(waiting, Denied)
    assert waiting.reason is Reason.STALE_EPOCH
    assert waiting.detail == "its results wait here for another scheduler"


def test_a_refusal_has_no_more_lines_than_its_message_may(tmp_path: Path) -> None:
    """The task has the most clauses that a requirement may have, all unmet, and time limits beyond the owner's."""
    shell = Shell(tmp_path, max_duration_s=3600.0)
    clauses = tuple(Clause(attribute=f"label:l{n}", op=Op.EQ, value="y") for n in range(32))
    task = Task(
        campaign="c-1",
        task="c-1/1",
        scheduler=ANN,
        model=Model(name="m.onnx", sha256="a" * 64, size=5),
        unit=UNIT,
        requirement=Requirement(clauses=clauses),
        measure=Measure(runs=10, loads=1),
        timeouts=Timeouts(run_s=86_400.0),
    )
    asked = Commit(key="c-1/1", attempt=1, epoch=1, task=task_body(task), signature=bytes(64), queue=False)
    reply = shell.ask(shell.connect(), asked)
    assert isinstance(reply, Denied)
    assert reply.reason is Reason.DOES_NOT_FIT
    assert len(reply.unmet) == 32
    assert "lets others use it for 1 h at a time" in reply.unmet[-1]
