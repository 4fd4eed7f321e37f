"""How long a run is expected to take, and the deadline that follows from it. Pure.

A worker that grants a lease and then only renews it could hold the task until every limit of the task has passed. So each run has a
deadline, which the scheduler keeps to itself, so that no worker can finish just in time. Past the deadline, the task is hedged at another
worker.

    allowance  = LEAST_S + FACTOR × (expected run + fetch of its models); FIRST_REPORT_S for a run that has reported nothing yet;
                 twice as long after each time that the task was hedged for it
    deadline   = the lease, or the last advance of the run, + allowance; at most the lease + MOST × allowance, whatever the run reports
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Mapping
from statistics import median
from typing import Final

from protocol.formats.spread import with_gaps
from protocol.formats.sustain import with_sustained
from protocol.values.task import Task
from results.row.rounds import timed_launches

LEAST_S: Final = 10.0
"""Seconds that any run may take: two renewals, and the wait for an idle host (10 s unless a worker's owner sets it otherwise)."""
FIRST_REPORT_S: Final = 6.0
"""Seconds that a run may take to report its first step: three renewals. A worker reports it at once."""
FACTOR: Final = 3.0
"""How much slower than expected a run without progress may be. Two launches of one task on one device differ by far less. Devices that meet
one requirement may differ more, and report progress.
"""
MOST: Final = 4.0
"""How far progress can extend an allowance: a device 12 times slower than expected that reports its steps is not hedged."""
FETCH_RATE: Final = 20e6
"""Bytes per second, to estimate a fetch."""
LAUNCH_S: Final = 5.0
"""Seconds for a launch of a model that nobody has run: a process with its runtime, and a load of 1 GB at 200 MB/s."""
INFERENCE_S: Final = 0.1
"""Seconds for an inference of a model that nobody has run, warm-up included."""
RECENT: Final = 5
"""Most recent runs of a model that count, on each worker."""
MAX_MODELS: Final = 1000
_ALIKE: Final = ("runs", "loads", "precision", "threads", "batch", "sustain_s", "over_s")
"""Fields of `measure` in which two measurements must agree for the time of one to predict the other's."""
_Measure = tuple[object, ...]
_Key = tuple[str, str, _Measure]


def measured_as(task: Task) -> tuple[object, ...]:
    """The values of the fields `_ALIKE`, which say how much a task measures."""
    return tuple(getattr(task.measure, field) for field in _ALIKE)


def past_run_s(task: Task, history: Iterable[tuple[Task, float]]) -> float | None:
    """Seconds that the same model took on the same unit, measured as it would be now: the median of the latest five. `history`: latest
    first.
    """
    key = _key_of(task)
    times = [seconds for before, seconds in history if _key_of(before) == key]
    return median(times[:RECENT]) if times else None


def asked_run_s(task: Task) -> float:
    """Seconds that a run takes by its definition, whatever its model: gaps between launches, and a sustained run."""
    measure = task.measure
    sustained_s = with_sustained(0.0, measure.sustain_s)
    return with_gaps(sustained_s, measure.over_s, precise=False)


def longest_run_s(task: Task) -> float:
    """Seconds that a run may take by all limits that its worker enforces."""
    limits = task.timeouts
    return limits.fetch_s + (timed_launches(task) + 1) * limits.load_s + limits.run_s


def default_run_s(task: Task) -> float:
    """Expected seconds of a run about which nothing is known."""
    measure, models = task.measure, len(task.models())
    if measure.sustain_s is not None:
        return 2 * LAUNCH_S + with_sustained(0.0, measure.sustain_s)
    counted_s = (timed_launches(task) + 1) * models * LAUNCH_S + measure.runs * INFERENCE_S
    return with_gaps(counted_s, measure.over_s, precise=measure.precision is not None)


def deadline(leased_at: float, since: float, advanced_at: float | None, allowance_s: float) -> float:
    """`since`: when the run got its lease, or the device. `advanced_at`: when it last reported something new; None: never."""
    heard_at = since if advanced_at is None else max(since, advanced_at)
    return min(heard_at + allowance_s, leased_at + MOST * allowance_s)


class RunTimes:
    """Seconds from lease to result, by model, unit and measurement, on each worker."""

    def __init__(self) -> None:
        self._times: OrderedDict[_Key, dict[str, deque[float]]] = OrderedDict()
        self._sizes: dict[_Key, int] = {}

    def add(self, task: Task, worker: str, seconds: float) -> None:
        """A run succeeded. `worker`: its peer id; empty: one of this home's earlier campaigns."""
        key = _key_of(task)
        self._times.setdefault(key, {}).setdefault(worker, deque(maxlen=RECENT)).append(seconds)
        self._times.move_to_end(key)
        self._sizes[key] = task.model.size
        while len(self._times) > MAX_MODELS:
            oldest, _ = self._times.popitem(last=False)
            del self._sizes[oldest]

    def expect_s(self, task: Task, worker: str) -> float:
        """Expected seconds of this run on this worker: the model's time there, else its time elsewhere, else the time of models measured
        alike, scaled by size; else an estimate from the number of launches and inferences.
        """
        key = _key_of(task)
        by_worker = self._times.get(key, {})
        if worker in by_worker:
            return median(by_worker[worker])
        if by_worker:
            return _typical(by_worker)
        asked_s = asked_run_s(task)
        alike = [
            asked_s
            + max(0.0, _typical(times) - asked_s) * max(1.0, task.model.size / max(1, self._sizes[other]))
            for other, times in self._times.items()
            if other[1:] == key[1:]
        ]
        return median(alike) if alike else default_run_s(task)

    def allowance_s(
        self, task: Task, worker: str, *, warm: Collection[str], hedged: int, silent: bool
    ) -> float:
        """How long the run may report nothing new there. `warm`: models that the worker has. `hedged`: how often the task was hedged for
        its deadline. `silent`: the run was observed from its lease on, and has reported nothing yet.
        """
        if silent:
            return FIRST_REPORT_S * 2.0**hedged
        fetch_s = sum(model.size for model in task.files() if model.sha256 not in warm) / FETCH_RATE
        return (LEAST_S + FACTOR * (self.expect_s(task, worker) + fetch_s)) * 2.0**hedged


def _key_of(task: Task) -> _Key:
    models = [model.sha256 for model in task.models()]
    return " ".join(models), " ".join(dict.fromkeys(task.units())), (*measured_as(task), len(models))


def _typical(by_worker: Mapping[str, Iterable[float]]) -> float:
    """The median of the workers' medians, on which a single worker has little influence."""
    return median(median(times) for times in by_worker.values())
