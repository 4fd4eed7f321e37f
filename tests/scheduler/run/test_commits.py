"""Gathered changes are committed at once after a quiet period, and at intervals under load. Nobody is told before the commit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import cast

import pytest
import trio
import trio.testing

from scheduler.run.commits import APART_S, BUSY_APART_S, MANY, GroupCommit
from scheduler.store.store import Store


class Gathering:
    """A store of numbers that records when each commit was made and what it wrote."""

    def __init__(self) -> None:
        self.gathered: Callable[[], None] = lambda: None
        self.pending: list[int] = []
        self.commits: list[tuple[float, list[int]]] = []

    def gather(self, gathered: Callable[[], None]) -> None:
        self.gathered = gathered

    def write(self, number: int) -> None:
        self.pending.append(number)
        if len(self.pending) == 1:
            self.gathered()

    @property
    def uncommitted(self) -> bool:
        return bool(self.pending)

    def commit(self) -> None:
        if self.pending:
            self.commits.append((trio.current_time(), self.pending))
            self.pending = []


async def test_after_a_quiet_while_at_once_and_then_apart_with_all_that_came(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = Gathering()
    told: list[tuple[int, float]] = []
    async with trio.open_nursery() as nursery:
        group = GroupCommit(cast(Store, store), nursery)

        async def change(number: int) -> None:
            store.write(number)
            await group.wait_until_stored()
            assert any(number in written for _, written in store.commits)
            told.append((number, trio.current_time()))

        began = trio.current_time()
        for number in range(10):
            nursery.start_soon(change, number)
            await trio.sleep(APART_S / 4)
    assert store.commits[0] == (began, [0])
    times = [at for at, _ in store.commits]
    assert all(later - sooner >= APART_S - 1e-9 for sooner, later in pairwise(times))
    assert sorted(number for _, written in store.commits for number in written) == list(range(10))
    assert sorted(number for number, _ in told) == list(range(10))
    assert max(at - (began + number * APART_S / 4) for number, at in told) <= APART_S + 1e-9
    assert len(store.commits) <= 4


@pytest.mark.parametrize(("waiting", "apart_s"), [(MANY - 1, APART_S), (MANY, BUSY_APART_S)])
async def test_after_a_commit_that_many_waited_for_the_next_one_is_later(
    waiting: int, apart_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    store = Gathering()
    async with trio.open_nursery() as nursery:
        group = GroupCommit(cast(Store, store), nursery)
        store.write(0)
        await group.wait_until_stored()  # the next commit is not made at once, so that all can wait for it
        store.write(1)
        for _ in range(waiting):
            nursery.start_soon(group.wait_until_stored)
        await trio.sleep(1.5 * APART_S)
        store.write(2)
        await group.wait_until_stored()
    (_, second, third) = [at for at, _ in store.commits]
    assert third - second == pytest.approx(apart_s)


@pytest.mark.parametrize("reads", [True, False])
async def test_what_a_reading_has_committed_is_not_waited_for_in_vain(
    reads: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """A read commits the gathered changes; later writes are committed like all others."""
    store = Gathering()
    async with trio.open_nursery() as nursery:
        group = GroupCommit(cast(Store, store), nursery)
        store.write(1)
        await group.wait_until_stored()
        store.write(2)
        if reads:
            store.commit()
            await group.wait_until_stored()
        store.write(3)
        with trio.fail_after(2 * APART_S):
            await group.wait_until_stored()
    assert [number for _, written in store.commits for number in written] == [1, 2, 3]
