"""Compares two sets of results: which rows belong together, whether they may be compared, and the outcome. Pure.

Rows belong together if they share model, unit, threads, batch and device. If the two sides share no device, the device is ignored, and so
are threads if each side has only one such row. There are two exceptions, unless devices are what is compared: if each side has one model,
those two models are compared; if each side is a single row, those two rows are, such as a task on the CPU and one on the GPU. A pair that
may not be compared (different shapes, not complete) says so instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from results.analysis.compare import compare_intervals, compare_samples, compare_through
from results.analysis.sittings import pooled_rows, sittings_of
from results.analysis.turns import comparison_in, pooled_turns
from results.export.raw import ResultEntry
from results.row.comparison import Comparison, ComparisonVerdict, ambiguous
from results.row.figures import PROCESSORS
from results.row.form import without_names
from results.row.identity import device_identity
from results.row.row import Row, RowStatus
from results.row.verdicts import RowVerdict

OTHERS_APART: Final = 10.0
STALL_APART: Final = 20.0
"""Percentage points: if two hosts differ by more, a difference in times may come from the hosts."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A row of B with its row of A; None: that side has no such row."""

    a: Row | None
    b: Row | None
    comparison: Comparison
    note: str = ""
    """Other relevant facts, such as that one of the rows is noisy."""
    in_turns: bool = False
    """Both models took turns in B's task; A has no row of its own."""
    sittings: int | None = None
    """The number of sittings that the comparison pools; None: it is of one sitting."""


def pairs_in_turns(rows: Sequence[Row]) -> list[Pair]:
    """A pair for each row whose model took turns with another; pooled sittings share one pair."""
    pairs, cells = [], sittings_of(rows)
    for row in pooled_rows(rows):
        if not row.against or row.status is not RowStatus.COMPLETE:
            continue
        unit = row.against_unit or row.compute_units
        other = {
            "file_name": row.against,
            "compute_units": unit,
            "threads": row.threads if unit == row.compute_units or unit.startswith(PROCESSORS) else None,
            "inference_ms_median": row.against_ms_median,
            "inference_ms_median_low": None,
            "inference_ms_median_high": None,
        }
        doubt = "" if row.verdict == RowVerdict.VALID else f"it is {row.verdict}"
        pooled = pooled_turns(cells.get((row.first_sitting, row.fingerprint), ()))
        pair = Pair(row.model_copy(update=other), row, comparison_in(row), doubt, in_turns=True)
        pairs.append(replace(pair, sittings=None if pooled is None else pooled.sittings))
    return pairs


def pooled_entries(entries: Sequence[ResultEntry]) -> list[ResultEntry]:
    """One entry in place of several sittings, with only its interval: launches of different sittings must not be mixed."""
    alone = {id(entry.row): entry for entry in entries}
    return [alone.get(id(row)) or ResultEntry(row) for row in pooled_rows([entry.row for entry in entries])]


def pair_up(
    a: Sequence[ResultEntry],
    b: Sequence[ResultEntry],
    *,
    across_devices: bool = False,
    reference: str = "",
    seed: int = 0,
) -> list[Pair]:
    """Pairs in A's order, then the rows that only B has. `across_devices`: devices are what is compared. `reference`: a model that was
    measured on every device of both sides; each time is divided by its time.
    """
    models = {entry.row.file_name for entry in (*a, *b)} - {reference}
    one_model = all(len({entry.row.file_name for entry in side} - {reference}) == 1 for side in (a, b))
    named = across_devices or not (one_model and len(models) == 2)
    alone = not across_devices and all(
        sum(entry.row.file_name != reference for entry in side) == 1 for side in (a, b)
    )
    devices = not across_devices and bool(_devices(a) & _devices(b))

    def key(row: Row) -> tuple[object, ...]:
        if alone:
            return ()
        return (
            row.file_name if named else "",
            row.compute_units,
            row.threads,
            row.batch,
            row.replica,
            device_identity(row) if devices else "",
        )

    left, right = ([entry for entry in side if entry.row.file_name != reference] for side in (a, b))
    any_threads = set[tuple[object, ...]]() if devices else _once(left, key) & _once(right, key)

    def name(row: Row) -> tuple[object, ...]:
        loose = key(row.model_copy(update={"threads": None}))
        return loose if loose in any_threads else key(row)

    rest: dict[tuple[object, ...], list[ResultEntry]] = {}
    for entry in right:
        rest.setdefault(name(entry.row), []).append(entry)
    pairs = []
    for entry in left:
        matches = rest.get(name(entry.row))
        other = matches.pop(0) if matches else None
        if other is None:
            pairs.append(_alone(entry.row, None))
        else:
            compare = partial(_through, a, b, reference) if reference else _compared
            pairs.append(_pair(entry.row, other.row, partial(compare, entry, other, seed)))
    return pairs + [_alone(None, entry.row) for more in rest.values() for entry in more]


def _once(side: Sequence[ResultEntry], key: Callable[[Row], tuple[object, ...]]) -> set[tuple[object, ...]]:
    """Keys without threads that exactly one row of a side has: devices differ in cores, and so in threads."""
    counts = Counter(key(entry.row.model_copy(update={"threads": None})) for entry in side)
    return {name for name, count in counts.items() if count == 1}


def _devices(side: Sequence[ResultEntry]) -> set[str]:
    return {device_identity(entry.row) for entry in side if entry.row.device_id}


def _pair(a: Row, b: Row, compare: Callable[[], Comparison]) -> Pair:
    if why := why_not_comparable(a, b):
        return Pair(a, b, ambiguous(f"not compared: {why}"))
    comparison = compare()
    surely = comparison.verdict in (ComparisonVerdict.FASTER, ComparisonVerdict.SLOWER)
    if surely and (why := other_host(a, b)):
        why = f"{comparison.why}; but {why}"
        comparison = replace(comparison, verdict=ComparisonVerdict.AMBIGUOUS, why=why)
    if a.simulated:
        return Pair(a, b, comparison, "a simulation, nothing was measured")
    doubts = [
        f"{side} is {row.verdict}" for side, row in (("A", a), ("B", b)) if row.verdict != RowVerdict.VALID
    ]
    return Pair(a, b, comparison, "; ".join(doubts))


def _alone(a: Row | None, b: Row | None) -> Pair:
    return Pair(a, b, ambiguous(f"not compared: only {'A' if b is None else 'B'} has it"))


def why_not_comparable(a: Row, b: Row) -> str:
    """Why two rows may not be compared; empty if they may."""
    if bool(a.simulated) != bool(b.simulated):
        return f"{'A' if a.simulated else 'B'} is a simulation, the other was measured"
    for side, row in (("A", a), ("B", b)):
        if row.status is not RowStatus.COMPLETE:
            return f"{side} is {row.status}" + (f" ({row.reason})" if row.reason else "")
        if row.inference_ms_median is None:
            return f"{side} has no times"
    if a.sustain_s != b.sustain_s:
        spans = [
            f"sustained for {row.sustain_s:g} s" if row.sustain_s else "measured by runs" for row in (a, b)
        ]
        return f"A was {spans[0]}, B was {spans[1]}"
    if without_names(a.shapes) != without_names(b.shapes):
        return f"the input shapes differ: {a.shapes or 'unknown'} and {b.shapes or 'unknown'}"
    variants = bool(a.variant and b.variant) and stem(a) == stem(b)  # variants exist to differ in types
    if not variants and a.dtypes and b.dtypes and without_names(a.dtypes) != without_names(b.dtypes):
        return f"the element types differ: {a.dtypes} and {b.dtypes}"
    return ""


def stem(row: Row) -> str:
    """The model's name without its variant."""
    return row.file_name.removesuffix(f" {row.variant}") if row.variant else row.file_name


def other_host(a: Row, b: Row) -> str:
    """How the hosts differed during the two measurements, so that a difference in times may come from them; empty if they did not
    differ.
    """
    for name, words, apart in (
        ("others_percent", "of the processors' time went to other work", OTHERS_APART),
        ("stall_percent", "of the time something waited for a processor", STALL_APART),
    ):
        one, other = getattr(a, name), getattr(b, name)
        if one is not None and other is not None and abs(one - other) > apart:
            return f"{one:.0f}% {words} for A, {other:.0f}% for B"
    slowed = [side for side, row in (("A", a), ("B", b)) if row.throttles or row.gpu_throttled]
    return f"{slowed[0]} was slowed by heat or power" if len(slowed) == 1 else ""


def _compared(a: ResultEntry, b: ResultEntry, seed: int) -> Comparison:
    if a.launches and b.launches:
        return compare_samples(a.launches, b.launches, seed=seed)
    one, other = _interval(a.row), _interval(b.row)
    if one is None or other is None:
        return ambiguous("both sides need raw samples, or both an interval of the median")
    return compare_intervals(one, other)


def _interval(row: Row) -> tuple[float, float, float] | None:
    low, middle, high = row.inference_ms_median_low, row.inference_ms_median, row.inference_ms_median_high
    return None if low is None or middle is None or high is None else (low, middle, high)


def _through(
    side_a: Sequence[ResultEntry],
    side_b: Sequence[ResultEntry],
    reference: str,
    a: ResultEntry,
    b: ResultEntry,
    seed: int,
) -> Comparison:
    beside = a.row.against_unit == b.row.against_unit and a.row.against == b.row.against == reference
    if beside and (mine := a.turns()) and (others := b.turns()):
        return compare_samples(mine, others, seed=seed)
    left, right = _reference(a.row, side_a, reference), _reference(b.row, side_b, reference)
    if left is None or right is None:
        side = "A" if left is None else "B"
        return ambiguous(
            f"not compared: {side} did not take turns with {reference}, and has no complete row of {reference} on that device and unit"
        )
    if not (a.launches and b.launches and left.launches and right.launches):
        return ambiguous("a comparison through a reference needs raw samples")
    return compare_through(a.launches, b.launches, left.launches, right.launches, seed=seed)


def _place(row: Row) -> tuple[object, ...]:
    return device_identity(row), row.compute_units, row.threads


def _reference(row: Row, side: Sequence[ResultEntry], name: str) -> ResultEntry | None:
    for entry in side:
        other = entry.row
        same = _place(other) == _place(row)
        if other.file_name == name and other.status is RowStatus.COMPLETE and same:
            return entry
    return None
