"""Measures and compares models on one device without a swarm. The device is an argument (`node.run.local.LocalDevice`).

Bench ──▶ Device.measure ──▶ signed record ──▶ the same row as a campaign's
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from pydantic import ValidationError

from protocol.errors import CampaignError, ResourceError
from protocol.formats.frameworks import (
    FORMATS,
    NO_EXTRA_FORMATS,
    WORKLOADS,
    UnitFormats,
    format_of_name,
    framework_of,
    plain_unit,
    runs,
)
from protocol.formats.phase import Phase
from protocol.formats.shapes import GivenSizes
from protocol.formats.spread import MIN_SHARE, has_several, with_gaps
from protocol.formats.sustain import with_sustained
from protocol.values.advert import UnitOffer
from protocol.values.attempt import TaskState
from protocol.values.record import SignedRecord, read_record
from protocol.values.task import Measure, Task, Timeouts, task_body
from protocol.words import SIMULATED_UNIT, RunOutcome
from results.export.raw import RawResult, raw_result
from results.row.comparison import Comparison
from results.row.make import make_row
from results.row.record import SERVED, RecordView, observe
from results.row.rounds import compare_rounds
from results.row.row import Row, RowStatus
from results.row.verdicts import RowVerdict
from scheduler.campaign.fields import UNITS, URL_SCHEMES
from scheduler.campaign.model import ModelEntry
from scheduler.campaign.reach import foreign_units
from scheduler.models.describe import Fetch, find_model, no_fetch, sha256_of
from scheduler.models.inspect import UnshapedModel, WrongUnits, inspect
from swarm.base.text import did_you_mean, safe_text
from swarm.download.urls import scheme_of, without_secrets

ReportProgress = Callable[[Phase, int, int | None, float | None], None]
"""Progress: phase, done, total, median in ms."""

UNIT_OF: Final[Mapping[str, str]] = {
    **{ending: plain_unit(form) for form, entry in FORMATS.items() for ending in entry.endings},
    ".pt": "CPU (Torch)",
    **dict.fromkeys(WORKLOADS, "API (OpenAI)"),
}
"""The default unit for a model with this file ending."""
_ENDED: Final = {
    RunOutcome.COMPLETE: TaskState.SUCCEEDED,
    RunOutcome.FAILED: TaskState.FAILED,
    RunOutcome.CANCELLED: TaskState.CANCELLED,
}


class SignedResult(Protocol):
    """A device's result: the task, and its record signed with the device's key."""

    @property
    def task(self) -> Task: ...

    @property
    def signed(self) -> SignedRecord: ...


class BenchDevice(Protocol):
    """A device that measures. Both methods block."""

    @property
    def units(self) -> tuple[str, ...]: ...

    @property
    def offers(self) -> Sequence[UnitOffer]:
        """The device's units, with what is known of them."""
        ...

    def measure(
        self,
        path: Path,
        unit: str,
        measure: Measure,
        timeouts: Timeouts | None = None,
        report: ReportProgress = ...,
        beside: Sequence[Path] = (),
        beside_units: Sequence[str] = (),
    ) -> SignedResult: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Measurement:
    """One model on one unit of this device: its row, and everything from which the row was made."""

    task: Task
    signed: SignedRecord
    row: Row
    observed: RecordView
    """Raw times, in nanoseconds."""

    @property
    def complete(self) -> bool:
        """Whether the unit ran the model, and its outputs do not differ from the reference."""
        return self.row.status is RowStatus.COMPLETE and self.row.verdict != RowVerdict.MISMATCH

    @property
    def median_ms(self) -> float | None:
        """The median time of one inference, in ms; None for a model that failed."""
        return self.row.inference_ms_median

    @property
    def interval_ms(self) -> tuple[float, float] | None:
        """The 95 % confidence interval of the median, in ms, as far as launches tell; None below six launches."""
        low, high = self.row.inference_ms_median_low, self.row.inference_ms_median_high
        return None if low is None or high is None else (low, high)

    @property
    def verdict(self) -> str:
        """What the numbers are worth, such as `valid` or `noisy`; empty for a model that failed."""
        return self.row.verdict

    @property
    def why(self) -> str:
        """The reason for the verdict, or for the failure."""
        return self.row.verdict_reason or self.row.detail

    @property
    def launches_ns(self) -> tuple[tuple[int, ...], ...]:
        """The timed inferences of each launch, in nanoseconds and in order."""
        return tuple(launch.samples for launch in self.observed.launches)

    def raw(self) -> RawResult:
        """The measurement for a file of raw results, which `sark-node verify` reads."""
        return raw_result(self.row, task_body(self.task), self.signed)

    def as_dict(self) -> dict[str, Any]:
        """All columns by name; what was not measured is None."""
        return self.row.model_dump(mode="json")


class Bench(AbstractContextManager["Bench"]):
    """Measures models on one device; several of them share one start of each runtime.

    with Bench(device) as bench:
        first = bench.measure("a.onnx", precision=0.02)
        print(first.median_ms, first.verdict)
        print(bench.compare("a.onnx", "b.onnx")[0].verdict)
    """

    def __init__(
        self,
        device: BenchDevice,
        report: ReportProgress | None = None,
        *,
        fetch: Fetch = no_fetch,
        folder: Path | None = None,
    ) -> None:
        """`fetch` downloads models by URL; meanwhile they are stored under their names in `folder`, or in the system's temporary folder."""
        self._device = device
        self._report = report or (lambda *_: None)
        self._fetch, self._folder = fetch, folder or Path(tempfile.gettempdir())

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the device's processes."""
        self._device.close()

    @property
    def units(self) -> tuple[str, ...]:
        """Names of the compute units that work here."""
        return self._device.units

    def units_for(self, model: Path) -> list[str]:
        """The units that run the model's format, as far as its file ending tells."""
        return units_that_run(model, self.units, foreign_units(self._device.offers))

    def measure(
        self,
        model: str | Path,
        unit: str | None = None,
        *,
        timeouts: Timeouts | None = None,
        sha256: str | None = None,
        **how: Any,
    ) -> Measurement:
        """Measure one model: a file, or a URL in the form that `bench` takes (https:, http:, file:, hf://ORG/REPO/FILE@REVISION). `unit`: a
        public name; None: the processor, by the file's ending. `sha256`: of the model, which is refused if it differs. `how`: fields of
        `Measure`, such as `runs=100`, `precision=0.02`, `threads=2`, `batch=8`, `dims={"seq": 128}`.

        A model that fails is a measurement that says why. Raises `CampaignError` for an invalid request (a missing file, an unknown field),
        `ResourceError` for a unit that does not work here.
        """
        measure = read_measure(how)
        with self._paths(model, sha256=sha256) as (path,):
            return self._measured(path, unit, measure, timeouts)

    def _paths(
        self, *models: str | Path, sha256: str | None = None
    ) -> AbstractContextManager[tuple[Path, ...]]:
        names = list(map(str, models))
        if sha256 is None and not any(scheme_of(name) in URL_SCHEMES for name in names):
            return contextlib.nullcontext(tuple(map(Path, names)))  # the device refuses a wrong file
        return local_paths(names, self._folder, self._fetch, sha256=sha256)

    def _measured(
        self,
        path: Path,
        unit: str | None,
        measure: Measure,
        timeouts: Timeouts | None = None,
        beside: Sequence[Path] = (),
        beside_units: Sequence[str] = (),
    ) -> Measurement:
        for name in (*([] if unit is None else [unit]), *beside_units):
            check_unit(name, self.units)
        limits = timeouts or Timeouts()
        run_s = with_sustained(limits.run_s, measure.sustain_s)
        run_s = with_gaps(run_s, measure.over_s, precise=measure.precision is not None)
        limits = limits.model_copy(update={"run_s": run_s})
        unit = unit or unit_for(path)
        made = self._device.measure(path, unit, measure, limits, self._report, beside, beside_units)
        record = read_record(made.signed.body)
        row = make_row(made.task, _ENDED[record.outcome], record)
        return Measurement(made.task, made.signed, row, observe(record))

    def compare(
        self,
        first: str | Path,
        second: str | Path,
        unit: str | None = None,
        *,
        first_unit: str | None = None,
        timeouts: Timeouts | None = None,
        **how: Any,
    ) -> tuple[Comparison, Measurement]:
        """Is the second model slower or faster than the first? Both are loaded in one process, where short blocks of their inferences take
        turns, so that the host affects both alike; further processes follow until the answer is sure.

        `unit`: of both, or of the second if the first has a `first_unit`; None: by the files' endings. Models on two units take turns in a
        process each, and may be one model.

        Returns the comparison (ratio: second / first), with both medians, and the second model's measurement, whose record has all rounds
        of both. Raises `CampaignError` if they cannot be compared: one of them fails, or their inputs have different shapes.
        """
        for name in how.keys() & {"runs", "precision", "loads", "sustain_s", "over_s"}:
            raise CampaignError(f"a comparison chooses its own {name}", hint=f"leave out {name}")
        measure = read_measure(how)
        with self._paths(first, second) as (one, other):
            its, own = first_unit or unit or unit_for(one), unit or unit_for(other)
            for name in (its, own):
                if name.startswith(SERVED):
                    raise CampaignError(
                        f"models cannot take turns on {name}",
                        hint="leave out --compare, and compare the results",
                    )
            apart = () if its == own else (its,)
            done = self._measured(other, own, measure, timeouts, (one,), apart)
        if done.row.status is not RowStatus.COMPLETE:
            raise CampaignError(
                f"{one.name} and {other.name} cannot be compared: {done.why}", hint="see: sark-node bench"
            )
        return compare_rounds(done.observed.rounds)[-1], done


def unit_for(model: Path) -> str:
    """The default unit for a model. Raises `CampaignError` for an unknown file ending."""
    unit = UNIT_OF.get(model.suffix.lower())
    if unit is None:
        raise CampaignError(
            f"model {model}: no unit is known for this file ending",
            hint=f"name a unit, such as --unit 'CPU (ONNX)'; known endings: {' '.join(UNIT_OF)}",
        )
    return unit


def units_that_run(model: Path, units: Sequence[str], more: UnitFormats = NO_EXTRA_FORMATS) -> list[str]:
    """Those of `units` that run the format of the model's file ending, or belong to its framework; for an unknown ending, all units that
    load a file.
    """
    form, usual = format_of_name(model.name), UNIT_OF.get(model.suffix.lower())
    if form is None and usual is not None:
        return [unit for unit in units if framework_of(unit) == framework_of(usual)]
    return [unit for unit in units if runs(unit, form, more) and not unit.startswith(SERVED)]


def look_at(path: Path, unit: str, measure: Measure) -> None:
    """Check a model before a device is asked. Raises `CampaignError` for a model that is broken, or whose format the unit does not run, and
    `UnshapedModel` for one whose inputs need sizes.
    """
    if unit.startswith(SERVED) or unit == SIMULATED_UNIT:
        return
    entry = ModelEntry.model_construct(
        path=path.name,
        dims=measure.dims,
        inputs={**measure.inputs, **measure.shapes},
        batch_dim=measure.batch_dim,
    )
    try:
        inspect(
            entry, path, [unit], [GivenSizes(measure.dims, measure.shapes, measure.batch, measure.batch_dim)]
        )
    except UnshapedModel as error:
        error.hint = error.missing.options
        raise
    except WrongUnits as error:
        error.hint = f"measure it with --unit '{plain_unit(error.form)}'"
        raise


def check_unit(unit: str, working: Sequence[str]) -> None:
    """Raises `CampaignError` for an unknown unit. The device refuses a known unit that is not `working`."""
    units = tuple(dict.fromkeys((*working, *UNITS)))
    if unit not in units:
        hint = "  ".join(
            filter(None, (did_you_mean(unit, units), f"units here: {', '.join(working) or 'none works'}"))
        )
        raise CampaignError(f"there is no unit {unit!r}", hint=hint)


def _check_over(measure: Measure) -> None:
    """Raises `CampaignError` if there are no launches to be spread."""
    if measure.over_s is None:
        return
    if measure.sustain_s is not None:
        raise CampaignError(
            "over spreads launches over time, but sustain makes one launch without a break",
            hint="give one of the two",
        )
    if measure.precision is None and not has_several(measure.runs, measure.loads):
        raise CampaignError(
            f"over spreads launches over time, but {measure.runs} inferences in {measure.loads} launches are timed in one",
            hint=f"use at least 2 launches, with {MIN_SHARE} inferences for each",
        )


def read_measure(how: Mapping[str, Any]) -> Measure:
    """The measuring options `how`. Raises `CampaignError` for the first wrong one."""
    if how.get("precision") is not None and ("runs" in how or "loads" in how):
        raise CampaignError(
            "precision measures until it is reached, but runs and loads set a fixed number",
            hint="give one of the two",
        )
    if how.get("sustain_s") is not None and (both := how.keys() & {"runs", "loads", "precision"}):
        raise CampaignError(
            f"sustain_s sets how long to measure and cannot be combined with {' and '.join(sorted(both))}",
            hint="give one of the two",
        )
    options = [name for name in Measure.model_fields if name != "own_dims"]
    hint = f"options: {', '.join(options)}"
    for name in how.keys() - set(options):
        raise CampaignError(f"unknown measuring option {name!r}", hint=hint)
    try:
        measure = Measure.model_validate(
            {**how, "own_dims": tuple(range(len(how.get("dims") or ()))) or None}
        )
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        hint = "it is a share: 0.02 for ±2 %" if place == "precision" else hint
        raise CampaignError(f"{place}: {first['msg']}", hint=hint) from exc
    _check_over(measure)
    return measure


@contextlib.contextmanager
def local_paths(
    names: Sequence[str], folder: Path, fetch: Fetch, *, sha256: str | None = None
) -> Iterator[tuple[Path, ...]]:
    """Each of these as a path. A URL is fetched, and stored for the block under its last name, in a folder of its own in `folder`.
    `sha256`: required of each of them.

    Raises `CampaignError` for a missing file and for a URL that provides none, `ResourceError` when it cannot be stored. Blocking.
    """
    models = tuple(_find(name, fetch, sha256) for name in names)
    for name, (path, _) in zip(names, models, strict=True):
        if sha256 is not None and (digest := sha256_of(path)) != sha256:
            raise CampaignError(
                f"model {safe_text(without_secrets(name), 100)} has the sha256 {digest}, not {sha256}",
                hint="give the sha256 of the intended file, or the right URL",
            )
    with contextlib.ExitStack() as stack:
        yield tuple(path if entry is None else _named(path, entry, folder, stack) for path, entry in models)


def _find(name: str, fetch: Fetch, sha256: str | None) -> tuple[Path, ModelEntry | None]:
    """Where the file is; and the entry, if the file was fetched and has another name there."""
    if scheme_of(name) not in URL_SCHEMES:
        path = Path(name)
        if not path.exists():
            raise CampaignError(
                f"model {path}: there is no such file", hint="give the path of a model's file, or its URL"
            )
        return path, None
    try:
        entry = ModelEntry.model_validate({"url": name, "sha256": sha256})
    except ValidationError as exc:
        error = exc.errors(include_url=False)[0]
        context = error.get("ctx", {})
        raise CampaignError(
            str(context.get("what", error["msg"])), hint=str(context.get("hint", ""))
        ) from None
    path = find_model(entry, Path(), fetch)
    shown = safe_text(without_secrets(name), 100)
    if not path.exists():
        raise CampaignError(f"model {shown}: there is no such file", hint="check the URL")
    return path, entry


def _named(path: Path, entry: ModelEntry, folder: Path, stack: contextlib.ExitStack) -> Path:
    """The same file under the entry's name while `stack` is open: rows show the name, and its ending tells the unit."""
    name = re.sub(r"[/\\\x00]", "_", entry.label)
    if name in ("", ".", "..", path.name):
        return path
    try:
        link = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder))) / name
        try:
            os.link(path, link)
        except OSError:  # a file system without links
            shutil.copyfile(path, link)
    except OSError as exc:
        raise ResourceError(
            f"cannot keep {safe_text(name, 60)} in {folder}: {exc.strerror or exc}",
            hint="check the disk, or put the cache elsewhere: --home",
        ) from None
    return link
