"""The driver for servers that speak the OpenAI API: vLLM, llama.cpp's server and many more. A client, not a runtime.

    prepare ─▶ load: is the model served? ─▶ warm-up ─▶ one level of load after the other ─▶ check: figures

The task brings a workload (`drivers.openai.workload`) instead of a model. The server's URL and key belong to the device's owner and come
with the environment, which only this driver's children get. The server is a black box: only what was sent and received, and when, is known.
It is a gray box if it runs on this host and its owner wants it watched (`drivers.openai.server_process`).

A timed sample is one request from its sending to the last of its text, at the first level of concurrency. Nothing is loaded here,
so there is no `LoadReport`, and one launch suffices.
"""

from __future__ import annotations

import gc
import hashlib
import math
import os
import time
from collections.abc import Coroutine, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from drivers.contract.base import (
    CheckReport,
    Crashed,
    Event,
    MeasureReport,
    ModelDescription,
    ProgressReport,
    RunFindings,
    Unfit,
    UnitInfo,
    WorkOrder,
    WrongUnit,
)
from drivers.measure.timing import timer_overhead_ns
from drivers.openai import figures, prompts
from drivers.openai.answers import answer_examples
from drivers.openai.client import ServerSession, read_server
from drivers.openai.load import STEP_S, Sweep, closed_loop, exactly, open_loop, poisson
from drivers.openai.server_process import ServerWatch
from drivers.openai.sse import RequestResult
from drivers.openai.workload import MAX_REQUESTS, Synthetic, Workload, read_workload
from protocol.formats.phase import Phase

UNIT: Final = "API (OpenAI)"
URL: Final = "SARK_API_URL"
KEY: Final = "SARK_API_KEY"
NAME: Final = "SARK_API_NAME"
WATCH: Final = "SARK_API_WATCH"
WARMUPS: Final = 2
"""Requests before the timed ones, unless the task gives a number."""
LEVEL: Final = 1_000_000
"""Distance between the numbers of two levels' requests, so that no synthetic prompt is sent twice."""
MAX_TIMES: Final = 1_000_000
"""Most times in a series of a record."""


@dataclass(slots=True)
class ServerRun:
    """One run: its session, and its results so far."""

    session: ServerSession
    total: int
    """Requests of all levels."""
    figures: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    done: int = 0
    """Requests of the previous levels."""

    def level(self, sweep: Sweep, work: Coroutine[object, object, None], warmups: int = 0) -> Iterator[Event]:
        """Run a level, reporting progress between its steps; nothing else runs in this process during a step."""
        phase, total = (Phase.WARM_UP, warmups) if warmups else (Phase.RUN, self.total)
        yield ProgressReport(phase, min(self.done, total), total)
        gc.collect()
        gc.disable()
        try:
            for _ in self.session.steps(work, STEP_S):
                yield ProgressReport(phase, min(self.done + len(sweep.results), total), total)
        finally:
            gc.enable()

    def add(self, prefix: str, sweep: Sweep, workload: Workload, *, planned: bool = False) -> None:
        """Add the figures of a level that has ended."""
        self.figures |= figures.of_level(prefix, sweep.in_order, sweep.wall_s, workload.slo, planned=planned)
        if sweep.cut:
            self.notes.append(f"{prefix.removesuffix('_')} ended early: {sweep.cut}")
        self.done += len(sweep.results)


class ApiDriver:
    """See `drivers.contract.base.Driver`."""

    name = "api"
    network = True
    loads_models = False

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ

    @property
    def watches(self) -> bool:
        """Whether this driver's children look at the server's processes on this host: only if the owner wants it."""
        return self._environ.get(WATCH) == "1"

    def preload(self) -> tuple[str, ...]:
        return ("asyncio", "h11", "ssl", "yaml")

    def units(self) -> tuple[UnitInfo, ...]:
        """The unit, if an endpoint is configured and answers."""
        if not self._environ.get(URL):
            return ()
        with self._session() as session:
            models, runtime = session.models(Unfit)
        return (UnitInfo(UNIT, self.name, runtime, f"{len(models)} model{'s' * (len(models) != 1)} served"),)

    def load_only(self, order: WorkOrder) -> Iterator[Event]:
        """Load nothing: the server has already loaded the model."""
        yield ProgressReport(Phase.PREPARE)
        yield ProgressReport(Phase.LOAD)

    def run(self, order: WorkOrder) -> Iterator[Event]:
        """Send requests level by level and report the results."""
        workload = yield from self._open(order)
        with self._session() as session:
            served, runtime = session.models(Crashed)
            model = choose_model(workload.model, served)
            yield from self._measure(order, workload, session, model, runtime)

    def answer(self, order: WorkOrder) -> Iterator[Event]:
        """See `drivers.contract.base.answers_examples`."""
        workload = yield from self._open(order)
        with self._session() as session:
            served, _ = session.models(Crashed)
            model = choose_model(workload.model, served)
            yield (yield from answer_examples(order, workload, session, model))

    def _open(self, order: WorkOrder) -> Generator[ProgressReport, None, Workload]:
        """Check the order and read its workload. Raises `Unfit`, or `WrongUnit` if no endpoint is configured."""
        if order.unit != UNIT:
            raise WrongUnit(f"asked for {order.unit}, this driver only has {UNIT}")
        yield ProgressReport(Phase.PREPARE)
        workload = read_workload(order.model)
        check(workload, order)
        if not self._environ.get(URL):
            raise WrongUnit(
                "no endpoint is configured on this device: sark-node join --api http://127.0.0.1:8000/v1"
            )
        yield ProgressReport(Phase.LOAD)
        return workload

    def _session(self) -> ServerSession:
        server = read_server(self._environ[URL], self._environ.get(KEY, ""))
        return ServerSession(server, self._environ.get(NAME, ""))

    def _measure(
        self, order: WorkOrder, workload: Workload, session: ServerSession, model: str, runtime: str
    ) -> Iterator[Event]:
        clock, first = session.clock, workload.concurrency[0]
        closed = [(c, requests_of(workload, order.runs, 4 * c)) for c in workload.concurrency[1:]]
        opened = [(rate, requests_of(workload, order.runs, figures.MIN_TREND)) for rate in workload.rates]
        run = ServerRun(session, order.runs + sum(count for _, count in (*closed, *opened)))
        prompt = prompts.prompts(workload, order.seed)
        ask = partial(
            session.requests, workload, lambda number: prompts.body(workload, model, prompt(number))
        )

        warmups, warm = order.warmup or WARMUPS, Sweep()
        work = exactly(warm, ask(LEVEL), warmups, LEVEL, 1, clock, bad=0)
        yield from run.level(warm, work, warmups)
        refuse_bad(warm, warmups)
        watch = ServerWatch(
            session.server.port, session.client.addresses, session.document, clock, watch=self.watches
        )

        base, timed = 2 * LEVEL, Sweep()
        timed_ask = ask(base, order.runs, keep=True)
        session.connect(first)
        cpu_s = time.process_time()
        work = exactly(timed, timed_ask, order.runs, base, first, clock, bad=tolerated(order.runs))
        yield from run.level(timed, work)
        cpu_s = time.process_time() - cpu_s
        refuse_bad(timed, order.runs)
        run.add("", timed, workload)
        run.done = order.runs
        watch.look()

        for concurrency, count in closed:
            base += LEVEL
            sweep = Sweep()
            session.connect(concurrency)
            numbers, bad = iter(range(base, base + count)), max(tolerated(count), count // 2)
            work = closed_loop(sweep, ask(base, count), numbers, concurrency, clock, bad=bad)
            yield from run.level(sweep, work)
            run.add(f"c{concurrency}_", sweep, workload)
            watch.look()
        for index, (rate, count) in enumerate(opened):
            base += LEVEL
            sweep = Sweep()
            due = poisson(rate, count, order.seed)
            work = open_loop(sweep, ask(base, count), base, due, clock, saturated=saturated)
            yield from run.level(sweep, work)
            prefix = figures.rate_name(rate) + "_"
            run.add(prefix, sweep, workload, planned=True)
            watch.look()
            full = bool(sweep.cut or saturated(sweep))
            run.figures[prefix + "saturated"] = float(full)
            if full and index + 1 < len(opened):
                skipped = ", ".join(f"{rate:g}" for rate, _ in opened[index + 1 :])
                run.notes.append(f"saturated at {rate:g} requests a second: not tried: {skipped}")
                break
        run.figures |= watch.figures()

        yield ProgressReport(Phase.CHECK)
        complete = [result for result in timed.in_order if not result.error]
        notes = (*notes_on(workload, model, order.runs, complete), *watch.notes, *run.notes)
        yield ModelDescription(
            UNIT, self.name, runtime, (f"access: {watch.access}",), 0, {}, {}, order.seed, notes
        )
        yield RunFindings(run.figures, series_of(complete))
        yield MeasureReport(
            tuple(result.e2e_ns or 0 for result in complete),
            tuple(result.e2e_ns or 0 for result in warm.in_order),
            cpu_s,
            timed.wall_s,
            None,
            timer_overhead_ns(),
            None,
            began_ns=timed.began_ns,
        )
        digest = hashlib.sha256("".join(result.sha256 for result in complete).encode()).hexdigest()
        yield CheckReport(None, digest, None, None, "a server's text has no reference to compare with")


# -- pure parts ----------------------------------------------------------------------------------------------------------


def check(workload: Workload, order: WorkOrder) -> None:
    """Raise `Unfit` for parts of an order that this driver cannot do, or should not do."""
    if order.precision is not None or order.window_s is not None:
        raise Unfit("an API is measured with `runs: N` requests, not with a precision")
    if order.pre or order.post or order.dims or order.batch is not None:
        raise Unfit(
            "an API takes no dims, no batch and no pre-run or post-run steps: write them into the workload's prompts"
        )
    if order.runs > MAX_REQUESTS:
        raise Unfit(f"runs ({order.runs}) may be at most {MAX_REQUESTS} for an API")
    if order.runs * workload.max_tokens > MAX_TIMES:
        raise Unfit(f"runs × max_tokens ({order.runs * workload.max_tokens}) may be at most {MAX_TIMES}")
    most = max(requests_of(workload, order.runs, 4 * max(workload.concurrency)), order.runs)
    prompts.check_size(workload, most)


def requests_of(workload: Workload, runs: int, least: int) -> int:
    """How many requests a level after the first has."""
    return workload.requests or min(MAX_REQUESTS, max(runs, least))


def tolerated(requests: int) -> int:
    """How many of the timed requests may fail before the run fails."""
    return max(2, requests // 10)


def choose_model(name: str, served: tuple[str, ...]) -> str:
    """The model to ask for. Raises `WrongUnit` if it is not served, or if the workload names no model and several are served."""
    if name in served:
        return name
    if len(served) == 1 and not name:
        return served[0]
    shown = (", ".join(one[:60] for one in served[:5]) or "nothing") + (" …" if len(served) > 5 else "")
    if name:
        raise WrongUnit(f"this device's endpoint does not serve {name[:60]!r}; it serves: {shown}")
    raise WrongUnit(f"the workload names no model, and this device's endpoint serves: {shown}")


def refuse_bad(sweep: Sweep, needed: int) -> None:
    """Raise `Unfit` or `Crashed` if too many requests failed."""
    if sweep.complete >= needed:
        return
    bad = [result for result in sweep.in_order if result.error]
    text = f"{len(bad)} of {len(sweep.results)} requests failed: {bad[0].error}"
    if all(result.status in (400, 422) for result in bad):
        raise Unfit(f"the server refuses this workload: {text}")
    raise Crashed(text)


def saturated(sweep: Sweep) -> str:
    """Why the server does not keep up; empty: it keeps up."""
    latest = sweep.in_order[-2 * figures.MAX_TREND :]
    waits = sorted((one.sent_ns, one.ttft_ns or one.e2e_ns) for one in latest if not one.error)
    rising = figures.rising([wait for _, wait in waits if wait is not None])
    return "the time to the first text keeps rising" if rising else ""


def series_of(results: list[RequestResult]) -> dict[str, tuple[int, ...]]:
    """Raw nanoseconds of the timed requests, in the order of sending."""
    series: dict[str, list[int | None]] = {
        "ttft": [result.ttft_ns for result in results],
        "itl": [gap for result in results for gap in result.itl_ns],
        "tpot": [result.tpot_ns for result in results],
        "e2e": [result.e2e_ns for result in results],
    }
    observed = {name: [time for time in times if time is not None] for name, times in series.items()}
    return {name: tuple(times[:MAX_TIMES]) for name, times in observed.items() if times}


def notes_on(workload: Workload, model: str, runs: int, results: list[RequestResult]) -> list[str]:
    """Facts that a reader needs to interpret the figures."""
    notes = [
        f"model {model[:120]!r}, {workload.endpoint}, max_tokens {workload.max_tokens}, temperature {workload.temperature:g}",
        f"timed: {runs} requests, {workload.concurrency[0]} in flight",
    ]
    if isinstance(workload.prompts, Synthetic):
        notes.append(f"prompts: synthetic, {workload.prompts.tokens} words, each different")
    else:
        notes.append(f"prompts: {len(workload.prompts)} listed ones in turn; the server may have cached them")
    if any(result.output_tokens is None for result in results):
        notes.append("the server reports no usage: the number of tokens is not known")
    if not workload.stream:
        notes.append("not streamed: the time to the first text is not known")
    same = len(results) > 1 and len({result.sha256 for result in results}) == 1
    if math.isclose(workload.temperature, 0) and same:
        notes.append("all responses are the same")
    return notes
