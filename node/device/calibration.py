"""The calibration of a device: warm-up floors, launches, timer, idle host, micro-benchmarks, and how certain each of them is. Pure.

    Calibration(fingerprint, quiet=True, floors={"CPU (ONNX)": CalibratedFigure(value=7, …)}, micro=(…), …)

A calibration combines rounds. Each round measures everything once (`node.device.calibrate`) and joins the earlier ones. A calibration is
valid while the hardware's fingerprint stays the same. `node.device.calibration_file` stores it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log
from statistics import median, stdev
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from drivers.contract.base import WorkOrder
from drivers.measure.idle_wait import BUSY
from drivers.measure.stopping import CHECKED_AFTER, first_look, launches_for

FLOOR_UNKNOWN: Final = WorkOrder("", "").warmup_floor
LEAST_FLOOR: Final = 2
MOST_FLOOR: Final = 50
"""Limited because the floor also applies to large models, whose inferences take long."""
SETTLED: Final = 0.05
"""An inference is warm once the inferences around it are this close to the median of the last half."""
AROUND: Final = 5
HEADLINES: Final = ("fp32_gflops_max", "memory_gb_s", "fp16_gflops_max", "bf16_gflops_max")
KEPT: Final = 9
"""A figure is computed from this many of the newest rounds."""
FEWEST_LAUNCHES: Final = 4
"""Fewest launches whose spread is meaningful."""
SHOWN_PRECISION: Final = 0.02
REMEASURED_LATER_NOTE: Final = "measured on a busy host; a running worker measures again when it is quiet"


class CalibratedFigure(BaseModel):
    """A figure of a device and how certain it is."""

    model_config = ConfigDict(frozen=True)

    value: float
    """The best of its rounds for speeds, their median for counts and spreads."""
    spread: float | None = None
    """Half of the range of its rounds, as a share of the value; None: there is only one round."""
    runs: int = 1
    """Number of rounds that measured it."""
    quiet: bool | None = True
    """Whether the host was quiet in all rounds. None: this system does not say."""
    at: float = 0.0
    """Time of the newest round, in seconds since the epoch."""
    last: tuple[float, ...] = ()
    """The figures of the newest rounds, oldest first, from which `value` and `spread` are computed."""


Pick = Callable[[Sequence[float]], float]
"""Computes a figure from the figures of its rounds."""


def figure_of_round(value: float, quiet: bool | None, at: float) -> CalibratedFigure:
    """A figure from one round."""
    return CalibratedFigure(value=value, quiet=quiet, at=at, last=(value,))


def joined_figure(
    old: CalibratedFigure | None, new: CalibratedFigure | None, pick: Pick
) -> CalibratedFigure | None:
    """One figure from two sets of rounds, `new` after `old`. A round on a busy host never changes a figure from quiet rounds, and a quiet
    round replaces all busy rounds."""
    if old is None or new is None:
        return new if old is None else old
    if (old.quiet is False) is not (new.quiet is False):
        return old if new.quiet is False else new
    last = (*old.last, *new.last)[-KEPT:]
    value = pick(last)
    spread = (max(last) - min(last)) / 2 / value if value else None
    return CalibratedFigure(
        value=value, spread=spread, runs=old.runs + new.runs, quiet=new.quiet, at=new.at, last=last
    )


def joined_figures(
    old: Mapping[str, CalibratedFigure], new: Mapping[str, CalibratedFigure], pick: Pick
) -> dict[str, CalibratedFigure]:
    """The joined figures by name, those of `old` first."""
    both = {name: joined_figure(old.get(name), new.get(name), pick) for name in (*old, *new)}
    return {name: figure for name, figure in both.items() if figure is not None}


class MicroFigures(BaseModel):
    """The micro-benchmarks of one processor or GPU."""

    model_config = ConfigDict(frozen=True)

    device: str
    backend: str
    threads: int
    figures: dict[str, CalibratedFigure]
    seconds: float
    clock_mhz: float | None = None
    """Mean clock during the newest round."""
    temperature_c: float | None = None
    power_w: float | None = None
    throttled: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def what(self) -> tuple[str, str, int]:
        """(device, backend, threads): rounds can be joined if these are equal."""
        return self.device, self.backend, self.threads


class HostFigures(BaseModel):
    """The host while this node was idle. None: unknown."""

    model_config = ConfigDict(frozen=True)

    others_share: float | None = None
    steal_share: float | None = None
    stall_share: float | None = None
    clock_mhz: float | None = None
    temperature_c: float | None = None
    on_battery: bool | None = None

    @property
    def quiet(self) -> bool | None:
        """Whether other processes hardly used the processors; None: unknown."""
        shares = (self.others_share, self.steal_share, self.stall_share)
        reported = [share for share in shares if share is not None]
        return max(reported) <= BUSY if reported else None


class Calibration(BaseModel):
    """All rounds of a device."""

    model_config = ConfigDict(frozen=True)

    v: Literal[2] = 2
    fingerprint: str = Field(pattern="^[0-9a-f]{64}$")
    at: float
    """Time of the newest round that counts, in seconds since the epoch."""
    quiet: bool | None = True
    """Whether the host was quiet. None: this system does not say."""
    rounds: int = 1
    full: bool = False
    """Whether the curves are complete. A quick calibration has shorter curves."""
    timer_ns: int
    """Cost of reading the clock."""
    host: HostFigures = HostFigures()
    floors: dict[str, CalibratedFigure] = {}
    """Unit → fewest warm-up inferences, for units where they were learned."""
    spreads: dict[str, CalibratedFigure] = {}
    """Unit → standard deviation between launches, as a share, for units where it was learned."""
    micro: tuple[MicroFigures, ...] = ()
    notes: tuple[str, ...] = ()

    def floor(self, unit: str) -> int:
        """Fewest warm-up inferences of a unit; `FLOOR_UNKNOWN` if not learned."""
        return round(self.floors[unit].value) if unit in self.floors else FLOOR_UNKNOWN

    def first_look(self, unit: str, precision: float) -> int:
        """Launches after which a unit's times may reach `precision` for the first time."""
        return first_look(self.spreads[unit].value if unit in self.spreads else None, precision)


def joined(old: Calibration | None, new: Calibration) -> Calibration:
    """The calibration after a new round. `old` must have the same fingerprint. A first full round, which was requested explicitly, counts
    on a busy host too; the calibration then counts as busy until a quiet round."""
    if old is None:
        return new
    fuller = new.full and not old.full
    spoilt = new.quiet is False and old.quiet is not False and not fuller
    better = old.quiet is False and new.quiet is not False
    before = {} if fuller else {micro.what: micro for micro in old.micro}
    known_devices = {device for device, _, _ in before} if spoilt else set[str]()
    micro = [
        one.model_copy(update={"figures": joined_figures(before.pop(one.what).figures, one.figures, max)})
        if one.what in before
        else one
        for one in new.micro
        if one.what in before or one.device not in known_devices
    ]
    of_same = {one.device for one in micro}
    newest = old if spoilt else new
    return newest.model_copy(
        update={
            "rounds": old.rounds if spoilt else new.rounds if better else old.rounds + new.rounds,
            "full": old.full or new.full,
            "floors": joined_figures(old.floors, new.floors, median),
            "spreads": joined_figures(old.spreads, new.spreads, median),
            "micro": (*micro, *(one for one in before.values() if one.device not in of_same)),
        }
    )


def warm_after(samples: Sequence[int], each: int = 1) -> int:
    """Inferences before times settle at the level of the last half. `samples`: in ns; `each`: inferences per sample.

    Compares medians of `AROUND` samples, so that single slow samples do not count.
    """
    if len(samples) < 4 * AROUND:
        return FLOOR_UNKNOWN
    steady = median(samples[len(samples) // 2 :])
    for first in range(len(samples) // 2):
        if samples[first] <= steady * (1 + 2 * SETTLED) and median(
            samples[first : first + AROUND]
        ) <= steady * (1 + SETTLED):
            return min(MOST_FLOOR, max(LEAST_FLOOR, first * each))
    return min(MOST_FLOOR, len(samples) // 2 * each)


def spread_of(launches: Sequence[float]) -> float | None:
    """Standard deviation of the launches' medians, as a share; None: there are too few launches, or the clock is too coarse."""
    if len(launches) < FEWEST_LAUNCHES or min(launches) <= 0:
        return None
    return stdev(map(log, launches))


def describe_rounds(runs: int, quiet: bool | None) -> str:
    """`in 3 quiet rounds`, `in one round`."""
    kind = {True: "quiet ", None: "", False: "busy "}[quiet]
    return f"in {'one' if runs == 1 else runs} {kind}round{'' if runs == 1 else 's'}"


def headline(calibration: Calibration) -> str:
    """`cpu: 139 GFLOPS ±2 % fp32, memory 33 GB/s ±1 % in 3 quiet rounds; warm after 7 (CPU (ONNX)); ±2 % after 8 launches (CPU (ONNX))`."""
    parts = [f"{micro.device}: {text}" for micro in calibration.micro if (text := _peaks(micro.figures))]
    warm = ", ".join(f"{calibration.floor(unit)} ({unit})" for unit in sorted(calibration.floors))
    parts += [f"warm after {warm}"] if warm else []
    launches = ", ".join(
        f"{launches_text(calibration, unit)} ({unit})" for unit in sorted(calibration.spreads)
    )
    parts += [f"±{SHOWN_PRECISION * 100:g} % after {launches}"] if launches else []
    parts += [REMEASURED_LATER_NOTE] if parts and calibration.quiet is False else []
    return "; ".join(parts) or "nothing could be measured"


def launches_text(calibration: Calibration, unit: str) -> str:
    """The launches needed to measure a unit's times to ±2 %, in words such as `8 launches`."""
    count = launches_for(calibration.spreads[unit].value, SHOWN_PRECISION)
    return f"{count} launches" if count is not None else f"more than {CHECKED_AFTER[-1]} launches"


def figure_text(figure: CalibratedFigure) -> str:
    """`139 ±2 %`."""
    percent = max(0.1, (figure.spread or 0.0) * 100)
    spread = "" if figure.spread is None else f" ±{percent:.{0 if percent >= 1 else 1}f} %"
    return f"{figure.value:.4g}{spread}"


def _peaks(figures: Mapping[str, CalibratedFigure]) -> str:
    shown = [name for name in HEADLINES if name in figures]
    if not shown:
        return ""
    texts = []
    for name in shown:
        value, _, spread = figure_text(figures[name]).partition(" ")
        unit, kind = ("GB/s", "") if name == "memory_gb_s" else ("GFLOPS", name.partition("_")[0])
        text = " ".join(part for part in (value, unit, spread, kind) if part)
        texts.append(f"memory {text}" if not kind else text)
    first = figures[shown[0]]
    return ", ".join(texts) + f" {describe_rounds(first.runs, first.quiet)}"


def curves(micro: MicroFigures) -> list[tuple[str, dict[str, CalibratedFigure]]]:
    """Figures by curve, in the order measured: `copy_gb_s` → {"64_kib": 41.2, …, "max": 55.0}."""
    by_curve: dict[str, dict[str, CalibratedFigure]] = {}
    for name, value in micro.figures.items():
        for unit in ("_gb_s_", "_gflops_"):
            if unit in name:
                kind, _, size = name.partition(unit)
                by_curve.setdefault(kind + unit[:-1], {})[size] = value
    return list(by_curve.items())
