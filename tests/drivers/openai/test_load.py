"""Load levels without a server: the checks made while they run. Time is simulated."""

from __future__ import annotations

import asyncio
import itertools

from drivers.openai.driver import saturated
from drivers.openai.load import LOOK_NS, Sweep, open_loop
from drivers.openai.sse import RequestResult

MS = 1_000_000


def answered(ttft_ms: int, sent_ms: int) -> RequestResult:
    return RequestResult(ttft_ns=ttft_ms * MS, e2e_ns=ttft_ms * MS, sent_ns=sent_ms * MS)


def test_looking_whether_the_server_keeps_up_is_not_done_before_each_request() -> None:
    ticks = itertools.count(0, MS)
    looks: list[int] = []
    sweep = Sweep()

    async def ask(number: int) -> RequestResult:
        return answered(1, number)

    def full(level: Sweep) -> str:
        looks.append(next(ticks))
        return "enough" if len(looks) == 5 else ""

    asyncio.run(open_loop(sweep, ask, 0, [0.0] * 1000, lambda: next(ticks), most=2000, saturated=full))
    assert (sweep.cut, len(looks)) == ("enough", 5)
    assert all(later - sooner >= LOOK_NS for sooner, later in itertools.pairwise(looks))
    assert 5 < len(sweep.results) < 1000


def test_a_client_that_holds_no_more_requests_says_so_at_once() -> None:
    sweep = Sweep()

    async def ask(number: int) -> RequestResult:
        await asyncio.sleep(0)
        return answered(1, number)

    asyncio.run(open_loop(sweep, ask, 0, [0.0] * 10, lambda: 0, most=0, saturated=lambda level: ""))
    assert (sweep.cut, sweep.results) == ("more requests were in flight than this client can hold", {})


def test_the_latest_answers_show_whether_the_server_keeps_up() -> None:
    rising = {number: answered(1 + number, number) for number in range(300)}
    assert saturated(Sweep(results=rising)) == "the time to the first text keeps rising"
    flat = {number: answered(5, number) for number in range(300, 1000)}
    assert saturated(Sweep(results=rising | flat)) == ""
    again = {number: answered(number, number) for number in range(1000, 1300)}
    assert saturated(Sweep(results=flat | again)) == "", "within a fifth it does not double"
