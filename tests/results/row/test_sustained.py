"""What a sustained run reports: levels, knee, steady state, recovery, joules; and what a record of one must contain."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from protocol.errors import RemoteProtocolError
from protocol.values.attempt import TaskState
from protocol.values.energy import MeterSample
from protocol.values.lease import Fence
from protocol.values.record import (
    Accelerator,
    DeviceFacts,
    LoadSample,
    Record,
    RunFacts,
    Timing,
    pack_samples,
    read_record,
    record_body,
)
from protocol.values.requirement import Requirement
from protocol.values.sustained import SustainedSample
from protocol.values.task import Measure, Model, Task, Timeouts
from protocol.words import Reason, RunOutcome
from results.analysis.matrix import make_matrix
from results.analysis.pairs import why_not_comparable
from results.report.sustained_chart import sustained_chart
from results.row.acceptance import check_whole, find_task_mismatch
from results.row.make import fingerprint, make_row
from results.row.row import Row
from results.row.sustained import Stretch, SustainedPhases, change_at, levels_of, phases

UNIT = "CPU (ONNX)"
WORKER = "12D3KooWAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnn"
S = 1_000_000_000
TASK = Task(
    campaign="c-1",
    task="c-1/1",
    scheduler=WORKER,
    model=Model(name="b.onnx", sha256="ab" * 32, size=10),
    unit=UNIT,
    requirement=Requirement(),
    measure=Measure(loads=1, sustain_s=60.0),
    timeouts=Timeouts(),
)
MS = (*([5.0] * 20), *([6.0] * 40))
"""Inference time in each second."""
STARTS = pack_samples([second * S for second in range(60)])
STOOD = (*([5.0] * 20), *([0.0] * 40))
"""Readings of a clock that has stopped."""


def timing(ms: tuple[float, ...] = MS, share: float = 1.0) -> Timing:
    samples = [round(one * 1e6) for one in ms for _ in range(4)]
    blocks = [number for _ in ms for number in (4, round(share * S), S, 1, 1)]
    return Timing(
        samples=pack_samples(samples),
        warmup=pack_samples([1]),
        cpu_s=60,
        wall_s=60,
        per_sample=40,
        blocks=pack_samples(blocks),
    )


SUSTAINED = SustainedSample(
    starts=STARTS,
    temperature=pack_samples([273_150 + 50_000 + 500 * second for second in range(60)]),
    pauses=pack_samples([S, 2 * S, 4 * S]),
    probes=tuple(pack_samples([ns]) for ns in (5_900_000, 5_100_000, 5_000_000)),
)
RAPL = MeterSample(
    source="rapl",
    part="package",
    device="package-0",
    energy_j=600.0,
    stretches=pack_samples([(12_000_000 if second < 20 else 9_000_000) + 1 for second in range(60)]),
)
FACTS: dict[str, Any] = {
    "campaign": "c-1",
    "task": "c-1/1",
    "attempt": 1,
    "fence": Fence(incarnation=0, number=1),
    "worker": WORKER,
    "task_sha256": "00" * 32,
    "model_sha256": "ab" * 32,
    "outcome": RunOutcome.COMPLETE,
    "device": DeviceFacts(device="d", name="here"),
    "ran": RunFacts(unit=UNIT, driver="onnx", runtime="r", shapes={"x": (1,)}, agrees=True),
    "loads": (LoadSample(ns=1),),
    "timings": (timing(),),
    "sustained": SUSTAINED,
}


def record(**changes: Any) -> Record:
    return Record(**{**FACTS, **changes})


def row_of(**changes: Any) -> Row:
    return make_row(TASK, TaskState.SUCCEEDED, record(**changes))


# -- phases ------------------------------------------------------------------------------------------------------------------------------


def of(ms: list[float], *probes: tuple[float, float]) -> SustainedPhases:
    seen = phases([Stretch(at, 1.0, 100, one, 1.0, joules=one / 10) for at, one in enumerate(ms)], probes)
    assert seen is not None
    return seen


def noisy(*levels: tuple[float, int], seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    return [ms * draw.lognormvariate(0, 0.02) for ms, number in levels for _ in range(number)]


def test_a_device_that_slows_down_has_a_burst_a_knee_and_a_steady_state() -> None:
    seen = of(noisy((5.0, 80), (6.0, 40), (7.0, 180)))
    assert seen.burst.median_ms == pytest.approx(5.0, rel=0.01)
    assert seen.knee_s == pytest.approx(80, abs=2)
    assert seen.steady is not None
    assert seen.steady.median_ms == pytest.approx(7.0, rel=0.01)
    assert seen.slowdown == pytest.approx(0.4, abs=0.02)
    assert seen.burst.joules == pytest.approx(0.005, rel=0.02), "50 J by 10,000 inferences"
    assert len(seen.levels) == 3


def test_a_device_that_keeps_its_speed_has_no_knee() -> None:
    found = [of(noisy((5.0, 300), seed=seed)) for seed in range(50)]
    assert [seen.knee_s for seen in found] == [None] * 50
    assert all(len(seen.levels) == 1 for seen in found)
    assert found[0].text() == "it kept its speed to the end"


def test_what_passes_is_no_knee() -> None:
    seen = of(noisy((5.0, 60), (9.0, 60), (5.0, 120)))
    assert len(seen.levels) == 3
    assert seen.knee_s is None


def test_a_device_that_becomes_quicker_has_no_knee() -> None:
    seen = of(noisy((7.0, 60), (5.0, 120)))
    assert seen.knee_s is None
    assert seen.slowdown == pytest.approx(-2 / 7, abs=0.02)


def test_a_device_that_still_changes_at_the_end_has_no_steady_state() -> None:
    seen = of(noisy((5.0, 100), (6.0, 100), (7.0, 30)))
    assert seen.steady is None
    assert seen.slowdown is None
    assert "still changing at the end" in seen.text()


@pytest.mark.parametrize(
    ("probes", "recovery"),
    [
        ([(1, 6.9), (2, 5.1), (4, 5.0)], 2),
        ([(1, 5.1), (2, 6.0), (4, 5.0)], 4),
        ([(1, 6.9), (2, 6.5), (4, 6.0)], None),
        ([], None),
    ],
)
def test_it_has_recovered_once_it_is_as_quick_again_and_stays_so(
    probes: list[tuple[float, float]], recovery: float | None
) -> None:
    assert of(noisy((5.0, 100), (7.0, 100)), *probes).recovery_s == recovery


def test_a_cut_is_found_where_it_is_and_not_by_chance() -> None:
    assert change_at([1.0] * 10 + [2.0] * 10) == 10
    assert change_at([1.0] * 40) is None
    assert change_at([1.0, 2.0]) is None
    false = sum(change_at(noisy((5.0, 200), seed=seed)) is not None for seed in range(200))
    assert false <= 4, "at most 1 in 100, and three more by luck"
    assert levels_of([5.0] * 30 + [5.1] * 30) == [(0, 60)], "two hundredths are no level"


# -- the row -----------------------------------------------------------------------------------------------------------------------------


def test_the_row_has_all_phases_and_says_so_in_a_sentence() -> None:
    row = row_of(meters=(RAPL,))
    assert (row.sustain_s, row.burst_ms, row.knee_s, row.steady_ms) == (60.0, 5.0, 20.0, 6.0)
    assert row.slowdown_percent == pytest.approx(20)
    assert row.recovery_s == 2.0
    assert (row.burst_j, row.steady_j) == (pytest.approx(0.075), pytest.approx(0.05625))
    assert (row.energy_source, row.energy_per_inference_j) == ("rapl package", pytest.approx(600 / 9600))
    assert row.verdict == "valid", "one launch that slows down is what was asked for"
    assert "20 % slower from 20 s on; as fast as at first after 2 s of rest" in row.verdict_reason


def test_times_of_zero_in_a_file_break_no_view() -> None:
    row = row_of(timings=(timing(STOOD),))
    assert (row.burst_ms, row.steady_ms) == (5.0, 0.0)
    assert sustained_chart(record(timings=(timing(STOOD),))) is not None


def test_what_speaks_against_any_row_speaks_against_a_sustained_one() -> None:
    ran = FACTS["ran"].model_copy(update={"agrees": False})
    assert row_of(ran=ran).verdict == "mismatch"


def test_rows_of_sustained_runs_are_not_compared_or_averaged_with_others() -> None:
    usual = Task(**{**TASK.model_dump(), "measure": Measure()})
    plain = make_row(usual, TaskState.SUCCEEDED, record(sustained=None))
    assert "A was sustained for 60 s, B was measured by runs" in why_not_comparable(row_of(), plain)
    assert fingerprint(TASK, record()) != fingerprint(usual, record())


# -- energy ------------------------------------------------------------------------------------------------------------------------------


def meter(source: str, part: str, energy_j: float | None = 100.0, **more: Any) -> MeterSample:
    return MeterSample.model_validate({"source": source, "part": part, "energy_j": energy_j, **more})


@pytest.mark.parametrize(
    ("meters", "source", "joules"),
    [
        ([meter("rapl", "package"), meter("csv", "wall", 300.0)], "csv wall", 300),
        ([meter("rapl", "package"), meter("csv", "wall", None)], "rapl package", 100),
        ([meter("rapl", "package"), meter("nvml", "gpu", 50.0)], "nvml gpu + rapl package", 150),
        ([meter("rapl", "package"), meter("rapl", "package", 20.0)], "rapl package", 120),
        (
            [meter("rapl", "package"), meter("rapl", "package", None), meter("rapl", "dram", 9.0)],
            "rapl dram",
            9,
        ),
        ([meter("rapl", "package"), meter("amdgpu", "gpu", 70.0)], "amdgpu gpu", 70),
    ],
)
def test_the_meter_that_sees_most_counts_and_is_named(
    meters: list[MeterSample], source: str, joules: float
) -> None:
    row = row_of(meters=tuple(meters))
    assert row.energy_source == source
    assert row.energy_per_inference_j == pytest.approx(joules / 9600)
    (cell,) = make_matrix([row])
    assert cell.per_watt == pytest.approx(9600 / joules), "a processor has its inferences per joule too"
    assert cell.energy_source == source


def test_without_a_meter_that_covers_the_run_there_is_no_energy() -> None:
    for meters in ((), (meter("csv", "wall", None),)):
        row = row_of(meters=meters or None)
        assert (row.energy_source, row.energy_per_inference_j, row.burst_j) == ("", None, None)


def test_records_of_older_versions_have_their_accelerator_as_a_meter() -> None:
    accelerator = Accelerator(source="nvml", device="H", samples=3, energy_j=960.0)
    row = row_of(accelerator=accelerator)
    assert (row.energy_source, row.energy_per_inference_j) == ("nvml gpu", pytest.approx(0.1))


# -- accepted records --------------------------------------------------------------------------------------------------------------------


def test_a_record_of_a_sustained_run_is_whole_and_travels() -> None:
    sent = record(meters=(RAPL,))
    check_whole(read_record(record_body(sent)), TASK)
    assert find_task_mismatch(sent, TASK) is None


def test_a_worker_that_knows_no_sustained_runs_is_told_apart() -> None:
    old = record(
        sustained=None,
        timings=(Timing(samples=pack_samples([1] * 100), warmup=pack_samples([1]), cpu_s=1, wall_s=1),),
    )
    check_whole(old, TASK)
    why = find_task_mismatch(old, TASK)
    assert why is not None
    assert why[0] is Reason.DOES_NOT_FIT
    assert "a sustained run was requested" in why[1]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda: {"timings": (timing(share=0.5),)}, "30 s of inferences, but the task asks for 60 s"),
        (lambda: {"timings": (timing(STOOD),)}, "an inference that took no time"),
        (lambda: {"loads": (LoadSample(ns=1),) * 2}, "a sustained run has one"),
        (lambda: {"timings": (timing().model_copy(update={"blocks": pack_samples([3, S, S, 1, 1] * 60)}),)}, "outside its stretches"),
        (lambda: {"sustained": SUSTAINED.model_copy(update={"starts": pack_samples([0])})}, "an entry in each column"),
        (lambda: {"sustained": SUSTAINED.model_copy(update={"pauses": pack_samples([0])})}, "the probe after it"),
        (lambda: {"meters": (meter("rapl", "package", stretches=pack_samples([1])),)}, "an entry for each stretch"),
    ],
)  # fmt: skip
def test_a_record_that_is_not_of_such_a_run_is_refused(
    change: Callable[[], dict[str, Any]], why: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        check_whole(record(**change()), TASK)


def test_nobody_sustains_what_was_to_be_measured_by_runs() -> None:
    usual = Task(**{**TASK.model_dump(), "measure": Measure(runs=240, loads=1)})
    with pytest.raises(RemoteProtocolError, match="the task asks for runs"):
        check_whole(record(), usual)
