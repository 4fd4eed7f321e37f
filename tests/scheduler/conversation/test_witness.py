"""What a scheduler reveals, and what it records of a stranger's run."""

from __future__ import annotations

import hashlib

import pytest

from protocol.messages.work import LaunchEnded
from protocol.values.attempt import TaskState
from protocol.values.lease import Fence
from results.row.witness import LaunchNote
from scheduler.conversation.claims import ADOPTION_EPOCH_STEP
from scheduler.conversation.witness import BEFORE, NO_SERVERS, WitnessBook
from tests.scheduler.core_parts import a_live_task

UNIT = "CPU (ONNX)"


def book(key: bytes = b"k") -> WitnessBook:
    return WitnessBook(lambda message: hashlib.sha512(key + message).digest())


def ended(launch: int, digest: str = "a" * 64) -> LaunchEnded:
    return LaunchEnded(lease="w-1.1", fence=Fence(incarnation=1, number=1), launch=launch, digest=digest)


def test_a_reveal_is_the_same_in_every_life_and_nobody_elses() -> None:
    first = book().reveal("c-1/1", 1, "", 0.0)
    assert book().reveal("c-1/1", 1, "", 99.0) == first
    others = [
        book(b"other").reveal("c-1/1", 1, "", 0.0),
        book().reveal("c-1/1", 2, "", 0.0),
        book().reveal("c-1/2", 1, "", 0.0),
    ]
    assert len({first.reveal, first.opening, *(o.reveal for o in others), *(o.opening for o in others)}) == 8


def test_replicas_open_alike_and_go_on_apart() -> None:
    one, other = (book().reveal(task, 1, "set", 0.0) for task in ("c-1/1", "c-1/2"))
    assert one.opening == other.opening
    assert one.reveal != other.reveal


def test_times_count_from_the_first_reveal() -> None:
    witness = book()
    witness.commit("c-1/1", 1)
    told = witness.reveal("c-1/1", 1, "", 100.0)
    witness.reveal("c-1/1", 1, "", 105.0)
    witness.note("c-1/1", 1, ended(1), 110.0)
    witness.note("c-1/1", 1, ended(1, "b" * 64), 111.0)
    witness.result_arrived("c-1/1", 1, 120.0)
    witness.result_arrived("c-1/1", 1, 130.0)
    account = witness.account("c-1/1", 1, "", UNIT)
    assert account.notes == (LaunchNote(launch=1, digest="a" * 64, at_s=10.0),)
    assert (account.result_s, account.unwitnessed) == (20.0, "")
    assert (account.opening, account.reveal) == (told.opening.hex(), told.reveal.hex())


def test_notes_before_the_reveal_say_nothing() -> None:
    witness = book()
    witness.commit("c-1/1", 1)
    witness.note("c-1/1", 1, ended(1), 1.0)
    witness.reveal("c-1/1", 1, "", 2.0)
    witness.result_arrived("c-1/1", 1, 3.0)
    assert witness.account("c-1/1", 1, "", UNIT).notes == ()


def test_what_an_earlier_life_began_is_not_witnessed() -> None:
    witness = book()
    witness.reveal("c-1/1", 1, "", 100.0)
    witness.note("c-1/1", 1, ended(1), 101.0)
    witness.result_arrived("c-1/1", 1, 102.0)
    account = witness.account("c-1/1", 1, "", UNIT)
    assert (account.unwitnessed, account.notes, account.result_s) == (BEFORE, (), None)


def test_a_run_that_was_told_its_inputs_by_another_is_not_witnessed() -> None:
    witness = book()
    for attempt, first in ((1, 100.0), (2, None)):
        witness.commit("c-1/1", attempt)
        if first is not None:
            witness.reveal("c-1/1", attempt, "", first)
        witness.reveal("c-1/1", attempt, "", 101.0, again=True)
        witness.result_arrived("c-1/1", attempt, 102.0)
    accounts = [witness.account("c-1/1", attempt, "", UNIT) for attempt in (1, 2)]
    assert [(each.result_s, each.unwitnessed) for each in accounts] == [(2.0, ""), (None, BEFORE)]


@pytest.mark.parametrize(("woke_at", "witnessed"), [(102.9, True), (140.0, False)])
@pytest.mark.parametrize("beats_first", [True, False])
def test_a_run_that_asked_before_a_standstill_is_not_witnessed_and_one_that_had_its_inputs_is(
    woke_at: float, witnessed: bool, beats_first: bool
) -> None:
    witness = book()
    for attempt in (1, 2):
        witness.commit("c-1/1", attempt)
    witness.beat(99.0)
    witness.reveal("c-1/1", 1, "", 100.0)
    if beats_first:
        witness.beat(woke_at)
    witness.reveal("c-1/1", 2, "", woke_at)
    for attempt in (1, 2):
        witness.result_arrived("c-1/1", attempt, 150.0)
    had_inputs, asked_before = (witness.account("c-1/1", attempt, "", UNIT) for attempt in (1, 2))
    assert (had_inputs.result_s, had_inputs.unwitnessed) == (50.0, "")
    assert asked_before.unwitnessed == ("" if witnessed else BEFORE)


def test_what_another_key_may_have_begun_is_not_witnessed() -> None:
    witness = book()
    witness.commit("c-1/1", 1)
    witness.reveal("c-1/1", 1, "", 100.0)
    witness.result_arrived("c-1/1", 1, 102.0)
    assert witness.account("c-1/1", 1, "", UNIT, anothers=True).unwitnessed == BEFORE
    assert witness.account("c-1/1", 1, "", UNIT).reveal


@pytest.mark.parametrize(
    ("epoch", "found", "revealed", "anothers"),
    [
        (None, False, False, False),
        (ADOPTION_EPOCH_STEP - 1, True, True, False),
        (ADOPTION_EPOCH_STEP, False, True, False),
        (ADOPTION_EPOCH_STEP, True, True, True),
        (ADOPTION_EPOCH_STEP, False, False, True),
    ],
)
def test_only_after_an_adoption_may_a_run_be_anothers_which_was_found_or_asked_this_life_for_no_inputs(
    epoch: int | None, found: bool, revealed: bool, anothers: bool
) -> None:
    witness = book()
    fence = Fence(incarnation=1, number=1)
    entry = a_live_task(1, TaskState.RUNNING, "w", "w-1.1", fence, epoch=epoch, found=found)
    witness.commit(entry.id, 1)
    if revealed:
        witness.reveal(entry.id, 1, "", 100.0)
    assert witness.may_belong_to_former_scheduler(entry, "w") is anothers
    assert not witness.may_belong_to_former_scheduler(entry, "another worker")


def test_a_server_cannot_be_witnessed() -> None:
    assert book().account("c-1/1", 1, "", "API (OpenAI)").unwitnessed == NO_SERVERS


def test_a_worker_that_never_asked_has_a_chain_that_it_cannot_meet() -> None:
    witness = book()
    witness.commit("c-1/1", 1)
    witness.result_arrived("c-1/1", 1, 3.0)
    account = witness.account("c-1/1", 1, "", UNIT)
    assert account.reveal
    assert account.result_s is None


def test_a_forgotten_task_takes_no_room() -> None:
    witness = book()
    witness.commit("c-1/1", 1)
    witness.forget("c-1/1")
    assert witness.account("c-1/1", 1, "", UNIT).unwitnessed == BEFORE
