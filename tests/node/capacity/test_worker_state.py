"""A worker that its owner pauses, resumes, drains or has examined."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from node.capacity.worker_state import WorkerCondition
from protocol.words import RunOutcome, WorkerState


def ended(condition: WorkerCondition) -> None:
    condition.end(RunOutcome.COMPLETE, None, False, "m")


def test_what_is_held_back_comes_back_by_itself() -> None:
    condition = WorkerCondition()
    condition.hold("on battery")
    assert (condition.state, condition.why) == (WorkerState.DRAINING, "on battery")
    condition.hold("quiet hours until 07:00")
    assert condition.why == "quiet hours until 07:00"
    condition.hold("")
    assert (condition.state, condition.why) == (WorkerState.ACTIVE, "")


def test_a_run_goes_on_while_the_worker_is_held_back_and_is_reported_afterwards() -> None:
    condition = WorkerCondition()
    condition.begin()
    condition.hold("paused by its owner")
    assert condition.state is WorkerState.DRAINING
    condition.hold("")
    assert condition.state is WorkerState.BUSY
    condition.hold("paused by its owner")
    ended(condition)
    assert condition.state is WorkerState.DRAINING
    condition.hold("")
    assert condition.state is WorkerState.CLEANUP
    condition.clean()
    assert condition.state is WorkerState.ACTIVE


def test_a_faulty_device_is_held_back_only_once_it_is_well() -> None:
    condition = WorkerCondition()
    condition.break_down("nothing works")
    condition.hold("paused by its owner")
    assert (condition.state, condition.why) == (WorkerState.FAULTY, "nothing works")
    condition.record_examination("")
    assert (condition.state, condition.why) == (WorkerState.DRAINING, "paused by its owner")
    condition.hold("")
    assert condition.state is WorkerState.ACTIVE


def test_leaving_outranks_being_held_back_and_can_be_undone() -> None:
    condition = WorkerCondition()
    condition.hold("on battery")
    condition.drain("leaving")
    condition.hold("")
    assert (condition.state, condition.why) == (WorkerState.DRAINING, "leaving")
    condition.cancel_drain()
    assert condition.serving


def test_queued_leases_get_their_turn_while_it_leaves_only_if_they_are_to_be_finished() -> None:
    condition = WorkerCondition()
    condition.drain("drained by its owner", finish=True)
    assert not condition.serving
    assert condition.serves_queue
    condition.begin()
    ended(condition)
    condition.clean()
    assert condition.state is WorkerState.DRAINING
    condition.drain("drained by its owner")
    assert not condition.serves_queue


@given(st.lists(st.sampled_from(["begin", "end", "clean", "hold", "go", "drain", "stay", "break", "reset"])))
def test_whatever_happens_in_whatever_order_the_state_says_what_is_so(steps: list[str]) -> None:
    condition = WorkerCondition()
    busy = cleaning = 0
    held = leaving = faulty = False
    for step in steps:
        match step:
            case "begin":
                condition.begin()
                busy += 1
            case "end" if busy:
                ended(condition)
                busy, cleaning = busy - 1, cleaning + 1
            case "clean" if cleaning:
                condition.clean()
                cleaning -= 1
            case "hold":
                condition.hold("on battery")
                held = True
            case "go":
                condition.hold("")
                held = False
            case "drain":
                condition.drain("leaving")
                leaving = True
            case "stay":
                condition.cancel_drain()
                leaving = False
            case "break":
                condition.break_down("nothing works")
                faulty = True
            case "reset":
                condition.reset()
                faulty = False
        if faulty:
            expected = WorkerState.FAULTY
        elif held or leaving:
            expected = WorkerState.DRAINING
        elif busy:
            expected = WorkerState.BUSY
        else:
            expected = WorkerState.CLEANUP if cleaning else WorkerState.ACTIVE
        assert condition.state is expected
        assert bool(condition.why) is (expected in (WorkerState.FAULTY, WorkerState.DRAINING))
        assert condition.at_work is bool(busy or cleaning)
