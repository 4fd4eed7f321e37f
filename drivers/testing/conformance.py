"""Checks that a driver keeps its contract: plain functions that raise AssertionError, for the tests of any driver.

    from drivers.testing.conformance import Subject, check_all
    def test_my_driver_keeps_the_contract() -> None:
        check_all(Subject("mydriver", unit="CPU (Mine)", model="tests/small.bin"))

Everything is checked from outside, through the child processes that a node uses.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from drivers.contract.base import (
    CheckReport,
    Event,
    Limits,
    LoadKind,
    LoadReport,
    MeasureReport,
    ModelDescription,
    ProgressReport,
    Unfit,
    WorkOrder,
    formats_of,
)
from drivers.contract.registry import installed, make, names
from drivers.launch.launch import Zygote, measure, probe_units
from protocol.formats.frameworks import FORMATS
from protocol.formats.phase import Phase

NOWHERE = "Nowhere (Nothing)"
_HEADS = {"tflite": b"\x1c\0\0\0TFL3", "gguf": b"GGUF\x03\0\0\0", "pte": b"\x24\0\0\0ET12"}
"""First bytes of files in some formats."""
_WORD = re.compile("[a-z][a-z0-9]{0,15}")
LIMITS = Limits(load_s=60, run_s=120)


@dataclass(frozen=True, slots=True)
class Subject:
    """The driver to check."""

    driver: str
    """The name of its entry point."""
    unit: str
    """A unit that works on this device, such as `CPU (Mine)`."""
    model: str
    """Path of a small model that runs on the unit, a file or a folder."""
    dims: Mapping[str, int] = field(default_factory=dict)
    """Sizes that the model does not fix."""
    simulate: bool = False
    """Allow drivers that invent their figures."""
    private: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the driver."""
    loads: bool = True
    """False: a server has loaded the model, and the driver's children do not."""


def check_all(subject: Subject) -> None:
    """Run every check. Raises AssertionError with a sentence on the first that fails."""
    installed = names(subject.simulate)
    assert subject.driver in installed, (
        f"no driver {subject.driver!r} is installed (there are: {', '.join(installed)}): "
        "install the package that names it as an entry point of the group sark.drivers"
    )
    with Zygote(subject.driver, simulate=subject.simulate, private=subject.private) as zygote:
        checks = [unit_is_offered, one_launch_reports_everything, the_model_is_unchanged]
        if subject.loads:
            checks += [runs_are_shared_out, few_runs_are_in_one_launch, a_window_of_time_is_filled]
        checks += [an_unknown_unit_is_unfit, a_missing_model_is_unfit, an_invalid_model_is_unfit]
        checks += [models_of_other_formats_are_unfit]
        for check in checks:
            check(subject, zygote)


def _run(subject: Subject, zygote: Zygote, runs: int, loads: int = 1) -> list[Event]:
    return list(measure(_order(subject, runs, loads), LIMITS, zygote))


def _order(subject: Subject, runs: int = 100, loads: int = 6, precision: float | None = None) -> WorkOrder:
    return WorkOrder(
        subject.model, subject.unit, runs, loads, warmup=2, dims=subject.dims, precision=precision
    )


def unit_is_offered(subject: Subject, zygote: Zygote) -> None:
    """`units()` names the unit, with the driver's name equal to that of its entry point."""
    offered = probe_units(subject.simulate, private={subject.driver: subject.private})
    own = [info for info in offered.units if info.driver == subject.driver]
    assert subject.unit in {info.unit for info in own}, (
        f"{subject.driver} does not offer {subject.unit}: {own}, {offered.troubles}"
    )


def one_launch_reports_everything(subject: Subject, zygote: Zygote) -> None:
    """One of each report; as many samples as runs; separate warm-up samples; phases in order."""
    events = _run(subject, zygote, runs=7)
    _one_each(events, ModelDescription, MeasureReport, CheckReport)
    assert len(_loads(events)) == int(subject.loads), (
        "exactly one load in a fresh process is required, unless a server has loaded the model"
    )
    measured = next(event for event in events if isinstance(event, MeasureReport))
    assert len(measured.samples_ns) == 7, f"7 samples for 7 runs are required, not {len(measured.samples_ns)}"
    assert measured.warmup_ns, "the inferences before the timed ones must be in warmup_ns"
    assert all(sample > 0 for sample in measured.samples_ns), "an inference takes time"
    described = next(event for event in events if isinstance(event, ModelDescription))
    assert (described.unit, described.driver) == (subject.unit, subject.driver), (
        f"something else ran: {described}"
    )
    assert described.providers, "providers must name what really ran"
    phases = [event.phase for event in events if isinstance(event, ProgressReport)]
    order = [phase for phase in Phase if phase in phases]
    assert sorted(phases, key=order.index) == phases, f"phases out of order: {phases}"
    assert Phase.LOAD in phases, "the phase load must be reported before the load"
    assert Phase.RUN in phases, "the phase run must be reported"


def _one_each(events: list[Event], *kinds: type[Event]) -> None:
    for kind in kinds:
        count = sum(isinstance(event, kind) for event in events)
        assert count == 1, f"exactly one {kind.__name__} is required"


def _loads(events: list[Event]) -> list[LoadReport]:
    """The loads in fresh processes."""
    return [event for event in events if isinstance(event, LoadReport) and event.kind is not LoadKind.WARM]


def _counts(events: list[Event]) -> list[int]:
    return [len(event.samples_ns) for event in events if isinstance(event, MeasureReport)]


def runs_are_shared_out(subject: Subject, zygote: Zygote) -> None:
    """Each launch loads and times its share; one launch describes and checks."""
    events = _run(subject, zygote, runs=13, loads=3)
    assert len(_loads(events)) == 3, "3 launches with a load each are required"
    assert _counts(events) == [5, 4, 4], f"13 runs over 3 launches must be 5, 4 and 4, not {_counts(events)}"
    _one_each(events, ModelDescription, CheckReport)


def few_runs_are_in_one_launch(subject: Subject, zygote: Zygote) -> None:
    """Too few runs to share out: the first launch makes them, the others only load."""
    events = _run(subject, zygote, runs=2, loads=3)
    assert len(_loads(events)) == 3, "3 loads are required"
    assert _counts(events) == [2], "one launch must make all runs"


def a_window_of_time_is_filled(subject: Subject, zygote: Zygote) -> None:
    """For a precision, each launch times inferences during a window of time."""
    counts = _counts(list(measure(_order(subject, precision=1.0), LIMITS, zygote)))
    assert len(counts) >= 6, f"at least 6 launches are required, not {len(counts)}"


def the_model_is_unchanged(subject: Subject, zygote: Zygote) -> None:
    """The model's files have the same bytes afterwards, and no file was added to a model folder."""
    before = _digests(Path(subject.model))
    _run(subject, zygote, runs=1)
    assert _digests(Path(subject.model)) == before, "the model file was changed"


def _digests(model: Path) -> dict[Path, bytes]:
    files = [path for path in model.rglob("*") if path.is_file()] if model.is_dir() else [model]
    return {path: hashlib.sha256(path.read_bytes()).digest() for path in files}


def _unfit(order: WorkOrder, zygote: Zygote, what: str) -> None:
    try:
        list(measure(order, LIMITS, zygote))
    except Unfit as why:
        message = str(why)
    else:
        raise AssertionError(f"{what} must raise Unfit")
    assert message, f"{what} must be refused with a message"


def an_unknown_unit_is_unfit(subject: Subject, zygote: Zygote) -> None:
    """Another unit never runs the model silently."""
    _unfit(WorkOrder(subject.model, NOWHERE, 1, 1), zygote, "an unknown unit")


def a_missing_model_is_unfit(subject: Subject, zygote: Zygote) -> None:
    """A path without a file is refused."""
    _unfit(WorkOrder(subject.model + ".missing", subject.unit, 1, 1), zygote, "a missing model")


def an_invalid_model_is_unfit(subject: Subject, zygote: Zygote) -> None:
    """A file that is not a model is refused."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "invalid"
        model.write_bytes(bytes(range(256)) * 4)
        _unfit(WorkOrder(str(model), subject.unit, 1, 1), zygote, "a file that is not a model")


def models_of_other_formats_are_unfit(subject: Subject, zygote: Zygote) -> None:
    """A driver that declares its formats refuses files that begin like those of other formats. Names the format that the driver declares
    wrongly."""
    point = next(point for point in installed() if point.name == subject.driver)
    declared = formats_of(make(point))
    wrong = [form for form in declared if _WORD.fullmatch(form) is None]
    assert not wrong, f"not names of formats: {wrong}; use {', '.join(FORMATS)}, or a name of its own"
    for form, head in _HEADS.items() if declared else ():
        if form in declared:
            continue
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model"
            model.write_bytes(head + bytes(512))
            _unfit(WorkOrder(str(model), subject.unit, 1, 1), zygote, f"a file in the format {form}")
