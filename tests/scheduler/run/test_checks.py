"""Records are checked beside everything else: those that wait together, in their order, each with its own outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import trio
import trio.testing

from protocol.errors import RemoteProtocolError
from scheduler.conversation.effects import CheckRecord
from scheduler.run.checks import TOGETHER, TOGETHER_BYTES, RecordChecks
from tests.scheduler.run.test_receive import BODY, TASK, WORKER, made

GOOD = made({})


def effect(padding: int = 0) -> CheckRecord:
    result, body = GOOD
    return CheckRecord(WORKER.peer_id, result, body + bytes(padding), TASK, BODY)


class Aside:
    """Work that goes on until it is told to end."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = trio.Event()

    async def __call__(self, work: Callable[[], None]) -> None:
        self.begun += 1
        await self.may_end.wait()
        work()


async def test_what_came_while_others_were_checked_is_checked_in_one_go() -> None:
    aside = Aside()
    checks = RecordChecks(aside)
    async with trio.open_nursery() as nursery:
        for _ in range(1 + TOGETHER):
            nursery.start_soon(checks.check, effect())
            await trio.testing.wait_all_tasks_blocked()
        assert aside.begun == 1
        aside.may_end.set()
    assert aside.begun == 2


async def test_large_records_are_checked_one_at_a_time() -> None:
    aside = Aside()
    checks = RecordChecks(aside)
    refused = 0

    async def check() -> None:
        nonlocal refused
        with pytest.raises(RemoteProtocolError):
            await checks.check(effect(TOGETHER_BYTES))
        refused += 1

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(check)
            await trio.testing.wait_all_tasks_blocked()
        aside.may_end.set()
    assert (aside.begun, refused) == (3, 3)


async def test_a_bad_record_is_refused_and_those_beside_it_are_not() -> None:
    aside = Aside()
    checks = RecordChecks(aside)
    outcomes: list[str] = []

    async def check(each: CheckRecord) -> None:
        try:
            outcomes.append(str((await checks.check(each)).record.outcome))
        except RemoteProtocolError as exc:
            outcomes.append(exc.what)

    forged = replace(effect(), signed_task=b"another")
    async with trio.open_nursery() as nursery:
        for each in (effect(), effect(), forged, effect()):
            nursery.start_soon(check, each)
            await trio.testing.wait_all_tasks_blocked()
        aside.may_end.set()
    assert [outcome for outcome in outcomes if outcome == "complete"] == ["complete"] * 3
    assert any("another task_sha256" in outcome for outcome in outcomes)


@pytest.mark.parametrize("leaves", [0, 1])
async def test_whoever_goes_away_leaves_the_others_their_turn(leaves: int) -> None:
    """Also if it had the turn: its link broke."""
    aside = Aside()
    checks = RecordChecks(aside)
    checked = 0
    scopes = [trio.CancelScope() for _ in range(4)]

    async def check(scope: trio.CancelScope) -> None:
        nonlocal checked
        with scope:
            await checks.check(effect())
            checked += 1

    async with trio.open_nursery() as nursery:
        for scope in scopes:
            nursery.start_soon(check, scope)
            await trio.testing.wait_all_tasks_blocked()
        scopes[leaves].cancel()
        await trio.testing.wait_all_tasks_blocked()
        aside.may_end.set()
    assert checked == 3
