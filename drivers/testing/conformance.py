"""Does a driver keep the contract? Plain functions that raise AssertionError, for the tests of any driver.

    from drivers.testing.conformance import Subject, check_all
    def test_my_driver_keeps_the_contract() -> None:
        check_all(Subject("mydriver", unit="CPU (Mine)", model="tests/small.bin"))

Everything is checked from outside, through the same child processes that a node uses.
"""

from __future__ import annotations

import hashlib
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
)
from drivers.contract.registry import names
from drivers.launch.launch import Zygote, measure, probe_units
from protocol.formats.phase import Phase

NOWHERE = "Nowhere (Nothing)"
LIMITS = Limits(load_s=60, run_s=120)


@dataclass(frozen=True, slots=True)
class Subject:
    """A driver by its entry point's name, a unit that works here, and a small model that runs on it."""

    driver: str
    unit: str
    model: str
    simulate: bool = False
    private: Mapping[str, str] = field(default_factory=dict)
    """Variables that the device's owner gives the driver."""
    loads: bool = True
    """Its children load the model; False: a server has it loaded."""


def check_all(subject: Subject) -> None:
    """Every check below. Raises AssertionError with a sentence at the first that fails."""
    known = names(subject.simulate)
    assert subject.driver in known, (
        f"no driver {subject.driver!r} is installed here (there are: {', '.join(known)}): "
        "install the package that names it as an entry point of the group sark.drivers"
    )
    with Zygote(subject.driver, simulate=subject.simulate, private=subject.private) as zygote:
        for check in (unit_is_offered, one_launch_tells_its_whole_story, the_model_is_left_alone):
            check(subject, zygote)
        for check in (
            runs_are_shared_out,
            few_runs_are_made_together,
            a_window_of_time_is_filled,
        ):
            if subject.loads:
                check(subject, zygote)
        for check in (an_unknown_unit_is_unfit, a_missing_model_is_unfit, rubbish_is_unfit):
            check(subject, zygote)


def _run(subject: Subject, zygote: Zygote, runs: int, loads: int = 1) -> list[Event]:
    return list(measure(WorkOrder(subject.model, subject.unit, runs, loads, warmup=2), LIMITS, zygote))


def unit_is_offered(subject: Subject, zygote: Zygote) -> None:
    """`units()` names the unit and the driver by its entry point's name."""
    offered = probe_units(subject.simulate, private={subject.driver: subject.private})
    mine = [info for info in offered.units if info.driver == subject.driver]
    assert subject.unit in {info.unit for info in mine}, (
        f"{subject.driver} does not offer {subject.unit}: {mine}, {offered.troubles}"
    )


def one_launch_tells_its_whole_story(subject: Subject, zygote: Zygote) -> None:
    """One of each fact; as many samples as runs; warm-up apart; what ran is named."""
    events = _run(subject, zygote, runs=7)
    for kind in (ModelDescription, MeasureReport, CheckReport):
        assert sum(isinstance(event, kind) for event in events) == 1, f"exactly one {kind.__name__} is due"
    assert len(_loads(events)) == int(subject.loads), (
        "exactly one load in a fresh process is due, if there is any"
    )
    measured = next(event for event in events if isinstance(event, MeasureReport))
    assert len(measured.samples_ns) == 7, f"7 runs were asked for, {len(measured.samples_ns)} samples came"
    assert measured.warmup_ns, "the inferences before the timed ones are kept apart, not left out"
    assert all(sample > 0 for sample in measured.samples_ns), "an inference takes time"
    described = next(event for event in events if isinstance(event, ModelDescription))
    assert (described.unit, described.driver) == (subject.unit, subject.driver), (
        f"something else ran: {described}"
    )
    assert described.providers, "what really ran has to be named"
    phases = [event.phase for event in events if isinstance(event, ProgressReport)]
    order = [phase for phase in Phase if phase in phases]
    assert sorted(phases, key=order.index) == phases, f"phases out of order: {phases}"
    assert Phase.LOAD in phases, "loading has to be announced before it starts"
    assert Phase.RUN in phases, "the timed inferences have to be announced"


def _loads(events: list[Event]) -> list[LoadReport]:
    """Those in fresh processes: the warm one is the parent's doing."""
    return [event for event in events if isinstance(event, LoadReport) and event.kind is not LoadKind.WARM]


def _counts(events: list[Event]) -> list[int]:
    return [len(event.samples_ns) for event in events if isinstance(event, MeasureReport)]


def runs_are_shared_out(subject: Subject, zygote: Zygote) -> None:
    """Each launch loads and times its share; described and checked is once."""
    events = _run(subject, zygote, runs=13, loads=3)
    assert len(_loads(events)) == 3, "3 launches were asked for, each with a load"
    assert _counts(events) == [5, 4, 4], f"13 runs over 3 launches, these came: {_counts(events)}"
    for kind in (ModelDescription, CheckReport):
        assert sum(isinstance(event, kind) for event in events) == 1, f"{kind.__name__} is told by one launch"


def few_runs_are_made_together(subject: Subject, zygote: Zygote) -> None:
    """Too few to share out: the first launch makes them, the others load only."""
    events = _run(subject, zygote, runs=2, loads=3)
    assert len(_loads(events)) == 3, "3 loads were asked for"
    assert _counts(events) == [2], "one launch makes all runs"


def a_window_of_time_is_filled(subject: Subject, zygote: Zygote) -> None:
    """Asked for a precision, a launch times inferences for a while, at least one."""
    order = WorkOrder(subject.model, subject.unit, warmup=2, precision=1.0)
    counts = _counts(list(measure(order, LIMITS, zygote)))
    assert len(counts) >= 6, f"at least 6 launches are due, {len(counts)} came"


def the_model_is_left_alone(subject: Subject, zygote: Zygote) -> None:
    """The file is there afterwards with the same bytes."""
    before = hashlib.sha256(Path(subject.model).read_bytes()).digest()
    _run(subject, zygote, runs=1)
    assert hashlib.sha256(Path(subject.model).read_bytes()).digest() == before, "the model file was changed"


def _unfit(order: WorkOrder, zygote: Zygote, what: str) -> None:
    try:
        list(measure(order, LIMITS, zygote))
    except Unfit as why:
        sentence = str(why)
    else:
        raise AssertionError(f"{what} has to raise Unfit")
    assert sentence, f"{what} has to be refused with a sentence"


def an_unknown_unit_is_unfit(subject: Subject, zygote: Zygote) -> None:
    """No silent fallback to another unit."""
    _unfit(WorkOrder(subject.model, NOWHERE, 1, 1), zygote, "a unit that is not here")


def a_missing_model_is_unfit(subject: Subject, zygote: Zygote) -> None:
    """A path that leads nowhere."""
    _unfit(WorkOrder(subject.model + ".missing", subject.unit, 1, 1), zygote, "a missing model")


def rubbish_is_unfit(subject: Subject, zygote: Zygote) -> None:
    """A file that is no model."""
    with tempfile.TemporaryDirectory() as folder:
        rubbish = Path(folder) / "rubbish"
        rubbish.write_bytes(bytes(range(256)) * 4)
        _unfit(WorkOrder(str(rubbish), subject.unit, 1, 1), zygote, "a file that is no model")
