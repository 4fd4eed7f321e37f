"""An unpacked record: launch by launch, in whole nanoseconds, with bounded lists. The basis of statistics, rows, comparison and
verification.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.formats.sustain import MAX_PROBE_SAMPLES, MAX_PROBES, MAX_STRETCHES
from protocol.values.record import (
    BLOCK_FIELDS,
    MAX_SAMPLES,
    HostLoad,
    LoadSample,
    Record,
    Timing,
    unpack_samples,
)
from protocol.values.rounds import MAX_ROUNDS, MAX_TOGETHER, RoundsSample
from results.row.order import in_order
from results.row.rounds import LaunchRounds

MAX_BLOCKS: Final = 100_000
SERVED: Final = "API "
"""Prefix of units where a server, not the task, loads the model."""


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """A stretch of timed inferences and the state of the host meanwhile. None: the system does not report it."""

    samples: int
    wall_ns: int
    cpu_ns: int
    stall_ns: int | None = None
    switches: int | None = None


@dataclass(frozen=True)
class RecordLaunch:
    """The times of one launch, in nanoseconds and in order."""

    samples: tuple[int, ...]
    warmup: tuple[int, ...] = ()
    per_sample: int = 1
    """Inferences behind each sample, which is their mean."""
    wall_s: float = 0.0
    blocks: tuple[RecordBlock, ...] = ()
    host: HostLoad = field(default_factory=HostLoad)

    @cached_property
    def ordered(self) -> list[int]:
        """The samples from fastest to slowest: most figures follow from them, and sorting them again costs little."""
        return in_order(self.samples)


@dataclass(frozen=True, slots=True)
class SustainedView:
    """A sustained run apart from its times. Columns have an entry for each block, 0 if unknown. None: the system does not report it."""

    starts_ns: tuple[int, ...]
    temperature_mk: tuple[int, ...] | None
    clock_khz: tuple[int, ...] | None
    part: str
    """The part of the device whose temperature and clock these are."""
    pauses_ns: tuple[int, ...]
    """Time from the end of the window to each probe."""
    probes_ns: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class RecordView:
    """The raw times of a record, unpacked, in nanoseconds and in order."""

    loads: tuple[int, ...] = ()
    """Load times of all launches, cold or not."""
    cold: tuple[int, ...] = ()
    """Loads before which the file's pages were dropped from memory."""
    fresh: tuple[int, ...] = ()
    """All other loads."""
    warm: tuple[int, ...] = ()
    """Second loads in the same process; not among `loads`."""
    launches: tuple[RecordLaunch, ...] = ()
    series: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    rounds: tuple[LaunchRounds, ...] = ()
    """The rounds of each launch in which models took turns."""
    sustained: SustainedView | None = None
    """The sustained run, if it was one."""
    stretch_uj: tuple[tuple[int, ...] | None, ...] = ()
    """For each of the record's meters: microjoules of each block, plus one; 0 if unknown. None: the meter was not read by blocks."""

    @cached_property
    def runs(self) -> tuple[int, ...]:
        """Timed samples of all launches."""
        return tuple(chain.from_iterable(launch.samples for launch in self.launches))

    @cached_property
    def warmup(self) -> tuple[int, ...]:
        """Warm-up samples of all launches."""
        return tuple(chain.from_iterable(launch.warmup for launch in self.launches))

    @property
    def inferences(self) -> int:
        """Number of timed inferences: more than samples if a sample is the mean of several."""
        return sum(len(launch.samples) * launch.per_sample for launch in self.launches)


@dataclass(frozen=True, slots=True)
class RecordBounds:
    """The most numbers that a record may hold, over all launches."""

    samples: int = MAX_SAMPLES
    warmup: int = MAX_SAMPLES
    blocks: int = len(BLOCK_FIELDS) * MAX_BLOCKS
    series: int = MAX_SAMPLES

    @property
    def total(self) -> int:
        """Numbers of all kinds together."""
        return self.samples + self.warmup + self.blocks + self.series


def observe(record: Record, bounds: RecordBounds = RecordBounds()) -> RecordView:
    """Unpack the raw times in `record`.

    Raises `RemoteProtocolError` for samples that are not in the protocol's form, or for more of a kind than `bounds` allows, before reading
    them.
    """
    timed, warmed, blocks = (
        _Bounded("samples", bounds.samples),
        _Bounded("warm-up samples", bounds.warmup),
        _Bounded("numbers of blocks", bounds.blocks),
    )
    launches = tuple(_launch(timing, timed, warmed, blocks) for timing in record.timings)
    series = _Bounded("times in series", bounds.series)
    return RecordView(
        loads=_loads(record.loads, "cold", "fresh"),
        cold=_loads(record.loads, "cold"),
        fresh=_loads(record.loads, "fresh"),
        warm=_loads(record.loads, "warm"),
        launches=launches,
        series={name: series.unpack(packed) for name, packed in record.series.items()},
        rounds=tuple(map(_rounds, record.rounds or ())),
        sustained=_sustained(record, launches),
        stretch_uj=_stretches(record, launches),
    )


def _sustained(record: Record, launches: Sequence[RecordLaunch]) -> SustainedView | None:
    """Raises `RemoteProtocolError` unless each block of the only launch has an entry in each column."""
    sample = record.sustained
    if sample is None:
        return None
    bounded = _Bounded("stretches", 3 * MAX_STRETCHES + MAX_PROBES * (MAX_PROBE_SAMPLES + 1))
    blocks = len(launches[0].blocks) if len(launches) == 1 else 0
    starts, heat, clock = (
        None if column is None else bounded.unpack(column)
        for column in (sample.starts, sample.temperature, sample.clock)
    )
    pauses, probes = bounded.unpack(sample.pauses), tuple(map(bounded.unpack, sample.probes))
    lengths = {len(column) for column in (starts, heat, clock) if column is not None}
    if lengths != {blocks} or not 0 < blocks <= MAX_STRETCHES:
        raise RemoteProtocolError("bad record: stretches without an entry in each column")
    if len(pauses) != len(probes) or not all(probes):
        raise RemoteProtocolError("bad record: a pause without the probe after it")
    return SustainedView(starts or (), heat, clock, sample.part, pauses, probes)


def _stretches(record: Record, launches: Sequence[RecordLaunch]) -> tuple[tuple[int, ...] | None, ...]:
    """Raises `RemoteProtocolError` if a meter was read over other blocks."""
    meters = record.meters or ()
    bounded = _Bounded("stretches of meters", MAX_STRETCHES * len(meters))
    columns = tuple(None if one.stretches is None else bounded.unpack(one.stretches) for one in meters)
    blocks = len(launches[0].blocks) if len(launches) == 1 else 0
    if any(column is not None and len(column) != blocks for column in columns):
        raise RemoteProtocolError("bad record: a meter without an entry for each stretch")
    return columns


def _rounds(sample: RoundsSample) -> LaunchRounds:
    """Raises `RemoteProtocolError` if the models do not all have the same rounds."""
    bounded = _Bounded("rounds", 2 * MAX_TOGETHER * MAX_ROUNDS)
    wall = tuple(map(bounded.unpack, sample.wall))
    cpu = None if sample.cpu is None else tuple(map(bounded.unpack, sample.cpu))
    lengths = {len(times) for times in (*wall, *(cpu or ()))}
    models = {len(sample.per_block), len(wall), len(wall if cpu is None else cpu)}
    if len(models) != 1 or len(lengths) != 1 or not 0 < max(lengths) <= MAX_ROUNDS:
        raise RemoteProtocolError("bad record: rounds that not every model took part in")
    return LaunchRounds(wall, cpu)


class _Bounded:
    """Unpacks lists of at most `left` numbers in total."""

    def __init__(self, what: str, left: int) -> None:
        self._what, self._left = what, left

    def unpack(self, packed: bytes) -> tuple[int, ...]:
        try:
            numbers = unpack_samples(packed, self._left)
        except RemoteProtocolError as exc:
            raise RemoteProtocolError(f"{exc.what} (among its {self._what})") from exc
        self._left -= len(numbers)
        return numbers


def _loads(loads: Iterable[LoadSample], *kinds: str) -> tuple[int, ...]:
    return tuple(load.ns for load in loads if load.kind in kinds)


def _launch(timing: Timing, timed: _Bounded, warmed: _Bounded, blocks: _Bounded) -> RecordLaunch:
    samples = timed.unpack(timing.samples)
    return RecordLaunch(
        samples=samples,
        warmup=warmed.unpack(timing.warmup),
        per_sample=timing.per_sample,
        wall_s=timing.wall_s,
        blocks=() if timing.blocks is None else _blocks(blocks.unpack(timing.blocks), len(samples)),
        host=timing.host or HostLoad(),
    )


def _blocks(numbers: tuple[int, ...], samples: int) -> tuple[RecordBlock, ...]:
    width = len(BLOCK_FIELDS)
    if len(numbers) % width:
        raise RemoteProtocolError("bad record: a block is cut off")
    blocks = tuple(
        RecordBlock(count, wall, cpu, stall - 1 if stall else None, switches - 1 if switches else None)
        for count, wall, cpu, stall, switches in zip(
            *(numbers[at::width] for at in range(width)), strict=True
        )
    )
    if sum(block.samples for block in blocks) > samples:
        raise RemoteProtocolError("bad record: its blocks hold more samples than there are")
    return blocks
