"""What witnessing costs, which honest runs it suspects, and what a liar can still gain. No network: messages arrive at once, as on a LAN.

    python benchmarks/measuring/witnessing.py overhead MODEL.onnx [rounds]     the same measurement witnessed and not, alternated
    python benchmarks/measuring/witnessing.py honest MODEL.onnx … [--rounds N] how much of honest runs' time nothing explains
    python benchmarks/measuring/witnessing.py liar MODEL.onnx [runs]           three ways to claim less time than a run took

`honest` counts the runs that would be `unwitnessed`; put the load on the host that it should tolerate. The liars: `scales` does all the
work and claims shorter times, just short of being doubted; `hides` claims the rest as loads; `skips` makes one inference in each launch,
which the chain demands, and claims its time for all inferences.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from drivers.contract.base import Event, Limits, LoadReport, MeasureReport, OutputReport, WorkOrder
from drivers.launch.events import received
from drivers.launch.launch import Launch, LaunchChain, Zygote, digest_of
from drivers.measure.stopping import MeasureJob, shares
from node.run.record_builder import COMPLETE, RecordJob, RunObservations
from protocol.values.lease import Fence
from protocol.values.record import DeviceFacts, Record
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts
from results.row.record import observe
from results.row.stats import centre
from results.row.witness import LaunchNote, WitnessAccount, doubts, refusal, unexplained_s

UNIT = "CPU (ONNX)"
LIMITS = Limits(load_s=60, run_s=600)
SECRETS = (b"o" * 32, b"r" * 32)
TASK = Task(
    campaign="c-1",
    task="c-1/1",
    scheduler="1" * 52,
    model=Model(name="m.onnx", sha256="0" * 64, size=1),
    unit=UNIT,
    requirement=Requirement(),
    measure=Measure(),
    timeouts=Timeouts(),
)


@dataclass
class Witnessed:
    """One run with its record and what was witnessed of it."""

    record: Record
    account: WitnessAccount

    @property
    def median_ms(self) -> float:
        return centre([launch.samples for launch in observe(self.record).launches]).median or 0.0

    @property
    def verdict(self) -> str:
        view = observe(self.record)
        refused = refusal(self.record, view, self.account)
        return f"refused: {refused[1]}" if refused else "; ".join(doubts(view, self.account)) or "believed"

    @property
    def unexplained(self) -> float:
        """Unexplained share of the witnessed time."""
        return (unexplained_s(observe(self.record), self.account) or 0.0) / (self.account.result_s or 1.0)


class Clock:
    """The scheduler's clock, which starts at the reveal."""

    def __init__(self) -> None:
        self.began = 0.0
        self.notes: list[LaunchNote] = []

    def reveal(self) -> tuple[bytes, bytes]:
        self.began = time.monotonic()
        return SECRETS

    def watch(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            if isinstance(event, OutputReport):
                at_s = time.monotonic() - self.began
                digest = digest_of(event).hex()
                self.notes.append(LaunchNote(launch=len(self.notes) + 1, digest=digest, at_s=at_s))
            yield event

    def run(self, events: Iterable[Event], forge: Callable[[list[Event], float], list[Event]]) -> Witnessed:
        """`forge`: turns the real events and the seconds that they took into the events that the worker claims."""
        seen = list(self.watch(events))
        result_s = time.monotonic() - self.began
        observations = RunObservations(opening=SECRETS[0], reveal=SECRETS[1])
        for event in forge(seen, result_s):
            observations.add(event, 0.0)
        job = RecordJob("l", Fence(incarnation=1, number=1), 1, TASK, "0" * 64)
        record = observations.record(job, COMPLETE, "1" * 52, DeviceFacts(device="d", name="d"))
        secrets = {"opening": SECRETS[0].hex(), "reveal": SECRETS[1].hex()}
        return Witnessed(record, WitnessAccount(**secrets, notes=tuple(self.notes), result_s=result_s))


def as_it_was(events: list[Event], result_s: float) -> list[Event]:
    return events


def honest(order: WorkOrder, zygote: Zygote) -> Witnessed:
    clock = Clock()
    return clock.run(Launch(order, LIMITS, zygote, reveal=clock.reveal).events(), as_it_was)


# -- liars -------------------------------------------------------------------------------------------------------------------


def forged(event: MeasureReport, factor: float) -> MeasureReport:
    """The times multiplied by a factor."""
    return replace(
        event,
        samples_ns=tuple(round(ns * factor) for ns in event.samples_ns),
        warmup_ns=tuple(round(ns * factor) for ns in event.warmup_ns),
        wall_s=event.wall_s * factor,
        blocks=(),
    )


def quickest(make: Callable[[float], Witnessed]) -> tuple[float, Witnessed]:
    """The smallest factor that is still believed, to within 0.5 percentage points."""
    low, high = 0.0, 1.0
    while high - low > 0.005:
        middle = (low + high) / 2
        low, high = (low, middle) if make(middle).verdict == "believed" else (middle, high)
    return high, make(high)


def scaling(run: Witnessed, events: list[Event], *, hides: bool) -> tuple[float, Witnessed]:
    """Does all the work and claims shorter times; `hides`: claims the remaining time as loads."""

    def make(factor: float) -> Witnessed:
        spare_ns = 0
        changed: list[Event] = []
        for event in events:
            if isinstance(event, MeasureReport):
                spare_ns += round((sum(event.warmup_ns) + event.wall_s * 1e9) * (1 - factor))
                event = forged(event, factor)
            changed.append(event)
        if hides:
            changed = [*changed, LoadReport(spare_ns, None, None)]
        observations = RunObservations(opening=SECRETS[0], reveal=SECRETS[1])
        for event in changed:
            observations.add(event, 0.0)
        job = RecordJob("l", Fence(incarnation=1, number=1), 1, TASK, "0" * 64)
        record = observations.record(job, COMPLETE, "1" * 52, DeviceFacts(device="d", name="d"))
        return Witnessed(record, run.account)

    return quickest(make)


def skipping(order: WorkOrder, zygote: Zygote) -> Witnessed:
    """One warm-up and one inference in each launch; their time is claimed for all requested inferences."""
    clock, spans = Clock(), list[float]()

    def work() -> Iterator[Event]:
        chain = LaunchChain(*clock.reveal())
        for number, _ in enumerate(shares(order.runs, order.loads)):
            one = replace(order, seed=chain.next_seed(), runs=1, warmup=1, witnessed=True, check=False)
            job = MeasureJob.REPEAT if number else MeasureJob.RUN
            began = time.monotonic()
            running = zygote.launch(replace(one, brief=bool(number)), LIMITS, job)
            for event in received(running, lambda: time.monotonic() + 60, LIMITS):
                if isinstance(event, OutputReport):
                    chain.add(event)
                    spans.append(time.monotonic() - began)
                if not isinstance(event, LoadReport) or event.kind != "warm":
                    yield event  # type: ignore[misc]

    def claim(events: list[Event], result_s: float) -> list[Event]:
        claims, changed, load_s = list(zip(shares(order.runs, order.loads), spans, strict=True)), [], 0.0
        for event in events:
            if isinstance(event, LoadReport):
                load_s = event.load_ns / 1e9
            if isinstance(event, MeasureReport):
                runs, span = claims.pop(0)
                each_s = max(1e-9, (span - load_s) / (runs + 5))
                event = replace(
                    event,
                    samples_ns=(round(each_s * 1e9),) * runs,
                    warmup_ns=(round(each_s * 1e9),) * 5,
                    wall_s=each_s * runs,
                    blocks=(),
                )
            changed.append(event)
        return changed

    return clock.run(work(), claim)


# -- the three parts ---------------------------------------------------------------------------------------------------------


def overhead(model: str, rounds: int, zygote: Zygote) -> None:
    """Seconds that neither loads nor inferences explain, with and without witnessing: what witnessing adds is part of them, and they
    contain less noise from other programs.
    """
    order = sized(model, zygote, 5.0)
    rest: dict[bool, list[float]] = {False: [], True: []}
    whole: list[float] = []
    for number in range(rounds):
        for witnessed in (number % 2 == 0, number % 2 == 1):
            own = 0.0
            began = time.monotonic()
            reveal = (lambda: SECRETS) if witnessed else None
            for event in Launch(order, LIMITS, zygote, reveal=reveal).events():
                if isinstance(event, LoadReport):
                    own += event.load_ns / 1e9
                if isinstance(event, MeasureReport):
                    own += sum(event.warmup_ns) / 1e9 + event.wall_s
            whole.append(time.monotonic() - began)
            rest[witnessed].append(whole[-1] - own)
    seconds = statistics.median(whole)
    added = [a - b for a, b in zip(rest[True], rest[False], strict=True)]
    low, high = interval(added)
    for witnessed, values in rest.items():
        print(
            f"{'witnessed' if witnessed else 'plain':9} {statistics.median(values):.3f} s besides, least {min(values):.3f} s"
        )
    print(
        f"adds {statistics.median(added) * 1e3:+.1f} ms ({low * 1e3:+.1f} … {high * 1e3:+.1f}) to {seconds:.2f} s"
    )
    print(f"   = {statistics.median(added) / seconds:+.2%} ({low / seconds:+.2%} … {high / seconds:+.2%})")


def interval(values: list[float]) -> tuple[float, float]:
    """Interval of the median by ranks, with 95 % confidence or more."""
    ordered, n = sorted(values), len(values)
    rank = max(0, int(n / 2 - 0.98 * n**0.5))
    return ordered[rank], ordered[n - 1 - rank]


def sized(model: str, zygote: Zygote, seconds: float) -> WorkOrder:
    """An order of six launches, with enough runs to take about `seconds`."""
    probe = honest(WorkOrder(model, UNIT, runs=24, loads=6), zygote)
    runs = max(24, round((seconds - 0.5) / (probe.median_ms / 1000)))
    return WorkOrder(model, UNIT, runs=runs, loads=6)


def suspects(models: list[str], rounds: int, zygote: Zygote) -> None:
    """The distribution over kinds of measurements."""
    kinds: dict[str, WorkOrder] = {
        "24 runs": WorkOrder("", UNIT, runs=24, loads=6),
        "100 runs": WorkOrder("", UNIT, runs=100, loads=6),
        "precision 2 %": WorkOrder("", UNIT, precision=0.02),
    }
    flagged = total = 0
    for model in models:
        for name, order in kinds.items():
            seen = []
            for _ in range(rounds):
                run = honest(replace(order, model=model), zygote)
                view, account = observe(run.record), run.account
                spare = (unexplained_s(view, account) or 0.0) / max(1, len(view.loads))
                seen.append((run.unexplained, spare, account.result_s or 0.0))
                total += 1
                if run.verdict != "believed":
                    flagged += 1
                    print("   flagged:", run.verdict)
            share, each, took = (sorted(part) for part in zip(*seen, strict=True))
            print(
                f"{model.rsplit('/', 1)[-1]:28} {name:14} {statistics.median(took):6.2f} s"
                f"  unexplained {statistics.median(share):4.0%} (most {share[-1]:4.0%})"
                f"  a launch {statistics.median(each) * 1e3:4.0f} ms (most {each[-1] * 1e3:4.0f})",
                flush=True,
            )
    print(f"flagged {flagged} of {total}")


def lie(model: str, runs: int, zygote: Zygote) -> None:
    """Print what each liar can claim."""
    order = WorkOrder(model, UNIT, runs=runs, loads=6)
    clock = Clock()
    kept: list[Event] = []

    def keep(events: list[Event], result_s: float) -> list[Event]:
        kept.extend(events)
        return events

    run = clock.run(Launch(order, LIMITS, zygote, reveal=clock.reveal).events(), keep)
    print(
        f"honest   {run.median_ms:9.3f} ms  {run.account.result_s:.2f} s  {run.verdict}, {run.unexplained:.0%} unexplained"
    )
    for name, hides in (("scales", False), ("hides", True)):
        factor, lied = scaling(run, kept, hides=hides)
        print(f"{name:8} {lied.median_ms:9.3f} ms  {1 / factor:5.1f} times as fast  {lied.verdict}")
    lied = skipping(order, zygote)
    faster = run.median_ms / lied.median_ms
    print(
        f"skips    {lied.median_ms:9.3f} ms  {faster:5.1f} times as fast  {lied.verdict}, in {lied.account.result_s:.2f} s"
    )


def main(arguments: list[str]) -> None:
    part, *rest = arguments
    rounds = int(rest.pop(rest.index("--rounds") + 1)) if "--rounds" in rest else 10
    rest = [each for each in rest if each != "--rounds"]
    with Zygote("onnx").start() as zygote:
        match part:
            case "overhead":
                overhead(rest[0], int(rest[1]) if len(rest) > 1 else 10, zygote)
            case "honest":
                suspects(rest, rounds, zygote)
            case "liar":
                lie(rest[0], int(rest[1]) if len(rest) > 1 else 100, zygote)
            case _:
                raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
