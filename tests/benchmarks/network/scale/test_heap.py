"""The event heap behaves like trio where the index relies on it, and a seed determines a run."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchmarks.network.scale import heap
from benchmarks.network.scale.product import product
from benchmarks.network.scale.scenarios import measure
from protocol.errors import LocalProtocolError


async def note(said: list[tuple[float, str]], word: str, after_s: float) -> None:
    await heap.sleep(after_s)
    said.append((heap.current_time(), word))


def test_tasks_go_on_when_their_time_has_come_and_in_the_order_they_were_woken() -> None:
    async def main() -> list[tuple[float, str]]:
        said: list[tuple[float, str]] = []
        async with heap.open_nursery() as nursery:
            for word, after_s in (("late", 2.0), ("first", 1.0), ("second", 1.0)):
                nursery.start_soon(note, said, word, after_s)
        return said

    assert heap.run(main) == [(1.0, "first"), (1.0, "second"), (2.0, "late")]


def test_a_deadline_ends_the_block_and_nothing_around_it() -> None:
    async def main() -> tuple[bool, float]:
        with heap.move_on_after(5.0):
            with heap.move_on_after(1.0) as inner:
                await heap.sleep_forever()
            await heap.sleep(1.0)
        return inner.cancelled_caught, heap.current_time()

    assert heap.run(main) == (True, 2.0)


def test_what_takes_longer_than_its_deadline_is_too_slow_with_all_that_runs_in_it() -> None:
    async def main() -> list[tuple[float, str]]:
        said: list[tuple[float, str]] = []

        async def both() -> None:
            with heap.fail_after(1.0):
                async with heap.open_nursery() as nursery:
                    nursery.start_soon(note, said, "in time", 0.5)
                    nursery.start_soon(note, said, "never", 1.5)

        with pytest.raises(heap.TooSlowError):
            await both()
        await heap.sleep(5.0)
        return said

    assert heap.run(main) == [(0.5, "in time")]


def test_an_error_of_one_task_ends_the_others_and_is_raised_by_their_nursery() -> None:
    async def fail() -> None:
        await heap.sleep(1.0)
        raise ValueError("one")

    async def main() -> list[tuple[float, str]]:
        said: list[tuple[float, str]] = []

        async def both() -> None:
            async with heap.open_nursery() as nursery:
                nursery.start_soon(fail)
                nursery.start_soon(note, said, "never", 2.0)

        with pytest.raises(ValueError, match="one"):
            await both()
        return said

    assert heap.run(main) == []


def test_a_lock_has_one_holder_and_passes_on_past_those_that_gave_up() -> None:
    async def main() -> list[float]:
        lock, times = heap.Lock(), []

        async def hold(patience_s: float) -> None:
            with heap.move_on_after(patience_s):
                async with lock:
                    times.append(heap.current_time())
                    await heap.sleep(2.0)

        async with heap.open_nursery() as nursery:
            for patience_s in (9.0, 1.0, 9.0):
                nursery.start_soon(hold, patience_s)
        return times

    assert heap.run(main) == [0.0, 2.0]


def test_what_is_sent_is_received_once_and_nobody_sends_to_a_closed_channel() -> None:
    async def main() -> list[str]:
        send, receive = heap.open_memory_channel[str](math.inf)
        got = []
        with receive:
            send.send_nowait("one")
            got.append(await receive.receive())
            with heap.move_on_after(1.0):
                await receive.receive()
            send.send_nowait("two")
            got.append(await receive.receive())
        with pytest.raises(heap.BrokenResourceError):
            send.send_nowait("three")
        return got

    assert heap.run(main) == ["one", "two"]


def test_a_run_in_which_nobody_goes_on_says_so() -> None:
    with pytest.raises(LocalProtocolError, match="nothing is left to wait for"):
        heap.run(heap.sleep_forever)


def test_the_index_under_test_is_the_products_own_on_another_clock() -> None:
    import trio

    import swarm.index.index as index

    assert product.index.trio is heap
    assert index.trio is trio
    assert product.index.__file__ == index.__file__


def test_a_seed_is_a_run_and_everybody_is_found_in_it() -> None:
    first, second = (replace(measure(24, "dead", seed=3), cpu_s=0.0) for _ in range(2))
    assert first == second
    assert {kind: query.found for kind, query in first.queries.items()} == dict.fromkeys(first.queries, 1.0)
    assert replace(measure(24, "dead", seed=4), cpu_s=0.0) != first


@pytest.mark.slow
def test_a_rare_device_is_found_although_a_fifth_of_all_nodes_collude() -> None:
    assert measure(40, "liars", seed=1).queries["rare"].found == 1.0
