"""Small records of trusted devices are checked at once; strangers' and large records are checked in the background, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import trio
import trio.testing

from protocol.errors import RemoteProtocolError
from results.row.witness import WitnessAccount
from scheduler.conversation.effects import CheckedRecord, CheckRecord
from scheduler.run.checks import SMALL, RecordChecks
from tests.scheduler.run.test_receive import BODY, TASK, WORKER, made

GOOD = made({})


def effect(padding: int = 0, *, stranger: bool = False) -> CheckRecord:
    result, body = GOOD
    account = WitnessAccount(unwitnessed="a test") if stranger else None
    return CheckRecord(WORKER.peer_id, result, body + bytes(padding), TASK, BODY, account)


class Aside:
    """Work that goes on until it is told to end."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = trio.Event()

    async def __call__(self, check: Callable[[], CheckedRecord]) -> CheckedRecord:
        self.begun += 1
        await self.may_end.wait()
        return check()


async def test_a_small_record_of_a_trusted_device_is_checked_at_once() -> None:
    aside = Aside()
    checked = await RecordChecks(aside).check(effect())
    assert str(checked.record.outcome) == "complete"
    with pytest.raises(RemoteProtocolError, match="the task_sha256 in the record of"):
        await RecordChecks(aside).check(replace(effect(), signed_task=b"another"))
    assert not aside.begun


async def test_what_a_stranger_sends_is_checked_aside_however_small_it_is() -> None:
    aside = Aside()
    aside.may_end.set()
    assert (await RecordChecks(aside).check(effect(stranger=True))).record == (
        await RecordChecks(aside).check(effect())
    ).record
    assert aside.begun == 1


async def test_a_record_that_may_hold_very_many_numbers_is_checked_aside_however_small_it_is() -> None:
    """A million equal times take a thousand bytes."""
    aside = Aside()
    aside.may_end.set()
    many = TASK.model_copy(update={"measure": TASK.measure.model_copy(update={"precision": 0.02})})
    with pytest.raises(RemoteProtocolError, match="1 launches"):
        await RecordChecks(aside).check(replace(effect(), task=many))
    assert aside.begun == 1


async def test_large_records_are_checked_aside_one_at_a_time() -> None:
    aside = Aside()
    checks = RecordChecks(aside)
    refused = 0

    async def check() -> None:
        nonlocal refused
        with pytest.raises(RemoteProtocolError):
            await checks.check(effect(SMALL))
        refused += 1

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(check)
            await trio.testing.wait_all_tasks_blocked()
        assert aside.begun == 1
        aside.may_end.set()
    assert (aside.begun, refused) == (3, 3)


@pytest.mark.parametrize("leaves", [0, 1])
async def test_whoever_goes_away_leaves_the_others_their_turn(leaves: int) -> None:
    """Even if it had the turn: its link broke."""
    aside = Aside()
    checks = RecordChecks(aside)
    checked = 0
    scopes = [trio.CancelScope() for _ in range(4)]

    async def check(scope: trio.CancelScope) -> None:
        nonlocal checked
        with scope:
            await checks.check(effect(stranger=True))
            checked += 1

    async with trio.open_nursery() as nursery:
        for scope in scopes:
            nursery.start_soon(check, scope)
            await trio.testing.wait_all_tasks_blocked()
        scopes[leaves].cancel()
        await trio.testing.wait_all_tasks_blocked()
        aside.may_end.set()
    assert checked == 3
