"""The driver for servers that speak the OpenAI API: vLLM, llama.cpp's server and many more. A client, not a runtime.

    prepare ─▶ load: is the model served? ─▶ warm-up ─▶ one level of load after the other ─▶ check: figures

The task brings a workload (`drivers.openai.workload`) in the place of a model. The server's URL and key are its owner's and come with
the environment, which only this driver's children get. It is a black box: what was asked and answered, and when. It is a gray one
where the server runs on this host and its owner wants it watched (`drivers.openai.server_process`).

A timed sample is one request from its sending to the last of its text, at the first level of concurrency. Nothing is loaded here,
so there is no `Loaded`, and one launch is all.
"""

from __future__ import annotations

import gc
import hashlib
import math
import os
import time
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
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
from drivers.openai import figures as api_figures
from drivers.openai import prompts, summaries
from drivers.openai.client import server_of
from drivers.openai.load import Ask, Sweep, closed_loop, exactly, open_loop, poisson
from drivers.openai.session import ApiSession, Watch
from drivers.openai.sse import ChatAnswer
from drivers.openai.workload import MAX_CONCURRENCY, MAX_REQUESTS, Workload, WorkloadJob, read_workload
from protocol.formats.phase import Phase

UNIT: Final = "API (OpenAI)"
URL: Final = "SARK_API_URL"
KEY: Final = "SARK_API_KEY"
NAME: Final = "SARK_API_NAME"
WATCH: Final = "SARK_API_WATCH"
WARMUPS: Final = 2
"""Requests before the timed ones, unless the task says how many."""
LEVEL: Final = 1_000_000
"""Between the numbers of two levels' requests, so that no made prompt comes twice."""
STEP_S: Final = 0.5
"""How often progress is told."""
MAX_TIMES: Final = 1_000_000
"""That a record can hold in one series."""
KEPT_TEXTS: Final = 100
NO_REFERENCE: Final = "what a server writes has no reference here"


@dataclass(slots=True)
class ServerFacts:
    """What one run has seen so far."""

    figures: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    done: int = 0
    """Requests of the levels before."""


class ApiDriver:
    """See `drivers.base.Driver`."""

    name = "api"
    network = True
    loads_models = False

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ

    @property
    def watches(self) -> bool:
        """Whether its children look at other processes of this host: the server's, if the owner wants that."""
        return self._environ.get(WATCH) == "1"

    def preload(self) -> tuple[str, ...]:
        """What each launch imports."""
        return ("asyncio", "ssl", "yaml")

    def units(self) -> tuple[UnitInfo, ...]:
        """The unit, if an endpoint was named and answers."""
        if not self._environ.get(URL):
            return ()
        with self._session() as session:
            models, runtime = session.models(Unfit)
        return (UnitInfo(UNIT, self.name, runtime, f"{len(models)} model{'s' * (len(models) != 1)} served"),)

    def load_only(self, order: WorkOrder) -> Iterator[Event]:
        """The server has loaded the model long ago."""
        yield ProgressReport(Phase.PREPARE)
        yield ProgressReport(Phase.LOAD)

    def run(self, order: WorkOrder) -> Iterator[Event]:
        """Ask, level by level, and tell what came."""
        if order.unit != UNIT:
            raise WrongUnit(f"asked for {order.unit}, this driver only has {UNIT}")
        yield ProgressReport(Phase.PREPARE)
        workload = read_workload(order.model)
        check(workload, order)
        if not self._environ.get(URL):
            raise WrongUnit("no endpoint was named here: sark-node join --api http://127.0.0.1:8000/v1")
        yield ProgressReport(Phase.LOAD)
        with self._session() as session:
            served, runtime = session.models(Crashed)
            model = chosen(workload.model, served)
            yield from self._measured(order, workload, session, model, runtime)

    def _session(self) -> ApiSession:
        server = server_of(self._environ[URL], self._environ.get(KEY, ""))
        return ApiSession(server, self._environ.get(NAME, ""))

    def _measured(
        self, order: WorkOrder, workload: Workload, session: ApiSession, model: str, runtime: str
    ) -> Iterator[Event]:
        story = ServerFacts()
        prompt = prompts.prompts(workload, order.seed)
        ask = session.asking(workload, lambda number: prompts.body(workload, model, prompt(number)))
        warmups = order.warmup or WARMUPS
        yield ProgressReport(Phase.WARM_UP, 0, warmups)
        first = workload.concurrency[0]
        warm = Sweep()
        yield from self._level(
            session,
            warm,
            exactly(warm, ask(LEVEL), warmups, LEVEL, 1, session.clock, bad=0),
            Phase.WARM_UP,
            0,
            warmups,
        )
        refuse_bad(warm, warmups)
        levels = [(c, requests_of(workload, order.runs, 4 * c)) for c in workload.concurrency[1:]]
        open_levels = [
            (rate, requests_of(workload, order.runs, api_figures.LEAST)) for rate in workload.rates
        ]
        total = order.runs + sum(count for _, count in (*levels, *open_levels))

        watch = Watch(session, self.watches)
        base = 2 * LEVEL
        timed = Sweep()
        kept = ask(
            base, order.runs, keep=True, texts=KEPT_TEXTS if workload.job is WorkloadJob.SUMMARISE else 0
        )
        session.connect(first)
        used = time.process_time()
        work = exactly(timed, kept, order.runs, base, first, session.clock, bad=allowed(order.runs))
        yield from self._level(session, timed, work, Phase.RUN, 0, total)
        used = time.process_time() - used
        refuse_bad(timed, order.runs)
        story.done = order.runs
        story.figures |= api_figures.of_level("", timed.in_order, timed.wall_s, workload.slo)
        watch.look()

        for concurrency, count in levels:
            base += LEVEL
            sweep = Sweep()
            session.connect(concurrency)
            numbers = iter(range(base, base + count))
            work = closed_loop(
                sweep,
                ask(base, count),
                numbers,
                concurrency,
                session.clock,
                bad=max(allowed(count), count // 2),
            )
            yield from self._level(session, sweep, work, Phase.RUN, story.done, total)
            self._told(story, f"c{concurrency}_", sweep, workload, watch)
        for at, (rate, count) in enumerate(open_levels):
            base += LEVEL
            sweep = Sweep()
            due = poisson(rate, count, order.seed)
            shifted = shift(ask(base, count), base)
            work = open_loop(sweep, shifted, due, session.clock, most=MAX_CONCURRENCY, full=saturated)
            yield from self._level(session, sweep, work, Phase.RUN, story.done, total)
            prefix = api_figures.rate_name(rate) + "_"
            self._told(story, prefix, sweep, workload, watch, planned=True)
            full = bool(sweep.cut) or bool(saturated(sweep))
            story.figures[prefix + "saturated"] = float(full)
            if full and at + 1 < len(open_levels):
                left = ", ".join(f"{rate:g}" for rate, _ in open_levels[at + 1 :])
                story.notes.append(f"full at {rate:g} requests a second: not tried: {left}")
                break
        story.figures |= watch.figures()
        yield ProgressReport(Phase.CHECK)
        answers = [answer for answer in timed.in_order if not answer.why]
        if workload.job is WorkloadJob.SUMMARISE:
            story.figures |= self._rouge(story, timed)
        yield ModelDescription(
            UNIT,
            self.name,
            runtime,
            (f"access: {watch.access}",),
            0,
            {},
            {},
            order.seed,
            (*notes_on(workload, model, order.runs, answers), *watch.notes, *story.notes),
        )
        yield RunFindings(story.figures, series_of(answers))
        yield MeasureReport(
            tuple(answer.e2e_ns or 0 for answer in answers),
            tuple(answer.e2e_ns or 0 for answer in warm.in_order),
            used,
            timed.wall_s,
            None,
            timer_overhead_ns(),
            None,
            began_ns=timed.began_ns,
        )
        digest = hashlib.sha256("".join(answer.sha256 for answer in answers).encode()).hexdigest()
        yield CheckReport(None, digest, None, None, NO_REFERENCE)

    def _told(
        self,
        story: ServerFacts,
        prefix: str,
        sweep: Sweep,
        workload: Workload,
        watch: Watch,
        *,
        planned: bool = False,
    ) -> None:
        """Take up what a level after the first has shown."""
        story.figures |= api_figures.of_level(
            prefix, sweep.in_order, sweep.wall_s, workload.slo, planned=planned
        )
        if sweep.cut:
            story.notes.append(f"{prefix.removesuffix('_')} was ended early: {sweep.cut}")
        story.done += len(sweep.answers)
        watch.look()

    def _rouge(self, story: ServerFacts, timed: Sweep) -> dict[str, float]:
        texts = summaries.articles()
        written = [
            (texts[number % len(texts)], answer.text)
            for number, answer in sorted(timed.answers.items())
            if answer.text
        ]
        seen = len({article.name for article, _ in written})
        story.notes.append(f"ROUGE of {len(written)} summaries of {seen} articles")
        return summaries.rouge(written)

    def _level(
        self,
        session: ApiSession,
        sweep: Sweep,
        work: Coroutine[object, object, None],
        phase: Phase,
        done: int,
        total: int,
    ) -> Iterator[Event]:
        """Run a level, telling progress between its steps; nothing else runs in this process meanwhile."""
        yield ProgressReport(phase, min(done, total), total)
        gc.collect()
        gc.disable()
        try:
            for _ in session.steps(work, STEP_S):
                yield ProgressReport(phase, min(done + len(sweep.answers), total), total)
        finally:
            gc.enable()


# -- pure parts ----------------------------------------------------------------------------------------------------------


def check(workload: Workload, order: WorkOrder) -> None:
    """Raises `Unfit` for what this driver cannot do of an order, or should not."""
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
    if workload.job is WorkloadJob.SUMMARISE:
        summaries.need_rouge()
    most = max(requests_of(workload, order.runs, 4 * max(workload.concurrency)), order.runs)
    prompts.check_size(workload, most)


def requests_of(workload: Workload, runs: int, least: int) -> int:
    """Requests of a level after the first."""
    return workload.requests or min(MAX_REQUESTS, max(runs, least))


def allowed(requests: int) -> int:
    """So many may fail of the timed ones before the run does."""
    return max(2, requests // 10)


def chosen(wanted: str, served: tuple[str, ...]) -> str:
    """The model to ask for. Raises `WrongUnit` when it is not served, or it is not clear which is meant."""
    shown = ", ".join(name[:60] for name in served[:5]) + (" …" if len(served) > 5 else "")
    match served:
        case _ if wanted in served:
            return wanted
        case (only,) if not wanted:
            return only
        case _ if wanted:
            raise WrongUnit(
                f"the endpoint here does not serve {wanted[:60]!r}; it serves: {shown or 'nothing'}"
            )
        case _:
            raise WrongUnit(
                f"the workload names no model, and the endpoint here serves: {shown or 'nothing'}"
            )


def refuse_bad(sweep: Sweep, wanted: int) -> None:
    """Raises `Unfit` or `Crashed` when too many requests failed."""
    if sweep.complete >= wanted:
        return
    bad = [answer for answer in sweep.in_order if answer.why]
    words = f"{len(bad)} of {len(sweep.answers)} requests failed: {bad[0].why}"
    if all(answer.status in (400, 422) for answer in bad):
        raise Unfit(f"the server refuses this workload: {words}")
    raise Crashed(words)


def saturated(sweep: Sweep) -> str:
    """Why the server does not keep up; empty: it does."""
    latest = islice(
        (sweep.answers[number] for number in sorted(sweep.answers, reverse=True)), 2 * api_figures.LOOKED_AT
    )
    sent = sorted((one.sent_ns, one.ttft_ns or one.e2e_ns) for one in latest if not one.why)
    if api_figures.rising([time for _, time in sent if time is not None]):
        return "the wait for the first text keeps rising"
    return ""


def shift(ask: Ask, base: int) -> Ask:
    """`ask` with numbers that begin at 0."""
    return lambda number: ask(base + number)


def series_of(answers: list[ChatAnswer]) -> dict[str, tuple[int, ...]]:
    """Raw nanoseconds of the timed requests, in the order in which they were sent."""
    all_series = {
        "ttft": tuple(time for answer in answers if (time := answer.ttft_ns) is not None),
        "itl": tuple(gap for answer in answers for gap in answer.itl_ns),
        "tpot": tuple(time for answer in answers if (time := answer.tpot_ns) is not None),
        "e2e": tuple(time for answer in answers if (time := answer.e2e_ns) is not None),
    }
    return {name: times[:MAX_TIMES] for name, times in all_series.items() if times}


def notes_on(workload: Workload, model: str, runs: int, answers: list[ChatAnswer]) -> list[str]:
    """What one has to know to read the figures."""
    notes = [
        f"model {model[:120]!r}, {workload.endpoint}, max_tokens {workload.max_tokens}, temperature {workload.temperature:g}",
        f"timed: {runs} requests, {workload.concurrency[0]} in flight",
    ]
    if workload.job is WorkloadJob.SUMMARISE:
        notes.append("prompts: articles to summarise")
    elif workload.prompts:
        notes.append(
            f"prompts: {len(workload.prompts)} listed ones in turn; the server may have kept what it read of them"
        )
    else:
        notes.append(f"prompts: made ones of {workload.prompt_tokens} words, each different")
    if any(answer.output_tokens is None for answer in answers):
        notes.append("the server does not tell its usage: how many tokens is not known")
    if not workload.stream:
        notes.append("not streamed: the time to the first text is not known")
    if (
        math.isclose(workload.temperature, 0)
        and len({answer.sha256 for answer in answers}) == 1
        and len(answers) > 1
    ):
        notes.append("all answers are the same")
    return notes
