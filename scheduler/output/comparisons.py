"""What `compare` and `matrix` give programs, on the command line and over HTTP: results of this home compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from results.analysis.compare import ComparisonVerdict
from results.analysis.matrix import MatrixCell, make_matrix
from results.analysis.pairs import Pair, pair_up
from results.analysis.pareto import Axis, fronts
from results.analysis.prices import Price
from results.export.raw import ResultSource
from results.row.form import JsonModel
from results.row.row import Row
from results.row.simulated import marked
from swarm.base.text import count


class PairInfo(JsonModel):
    """A row of B compared with its row of A."""

    verdict: ComparisonVerdict
    """What B is, compared with A."""
    ratio: float | None
    """B's time by A's."""
    ratio_low: float | None
    """Ends of its 95 % interval."""
    ratio_high: float | None
    p_value: float | None
    """How often chance alone puts the launches' ranks this far apart."""
    why: str
    note: str
    """What else matters, such as that either row is noisy."""
    a_job: str | None
    a_model: str | None
    a_unit: str | None
    a_device: str | None
    a_median_ms: float | None
    a_launches: int | None
    a_threads: int | None
    a_simulated: bool | None
    """true: a simulation, which is never compared with what was measured."""
    a_batch: int | None
    b_job: str | None
    b_model: str | None
    b_unit: str | None
    b_device: str | None
    b_median_ms: float | None
    b_launches: int | None
    b_threads: int | None
    b_simulated: bool | None
    b_batch: int | None


class ComparisonTable(JsonModel):
    """Two sets of results compared: what `sark-node compare --json` prints."""

    a: str
    b: str
    pairs: tuple[PairInfo, ...]


class ResultMatrix(JsonModel):
    """What `sark-node matrix --json` prints."""

    base: str | None
    cells: tuple[MatrixCell, ...]
    fronts: dict[Axis, tuple[str, ...]]
    """Of time against something else: jobs that no other beats in both, the quickest first."""


PAIR: Final = tuple(PairInfo.model_fields)
"""Columns of the table of pairs."""


def compare_sources(
    one: ResultSource,
    other: ResultSource,
    *,
    across_devices: bool = False,
    reference: str = "",
    seed: int = 0,
) -> tuple[ComparisonTable, list[Pair]]:
    """`other` compared with `one`, for programs and as it is. Some milliseconds for each pair: call it in a thread."""
    pairs = pair_up(
        one.entries(), other.entries(), across_devices=across_devices, reference=reference, seed=seed
    )
    return ComparisonTable(a=one.name, b=other.name, pairs=tuple(pair_info(pair) for pair in pairs)), pairs


def pair_info(pair: Pair) -> PairInfo:
    """`pair` for programs."""
    result = pair.comparison
    return PairInfo(
        verdict=result.verdict,
        ratio=result.ratio,
        ratio_low=result.low,
        ratio_high=result.high,
        p_value=result.p_value,
        why=result.why,
        note=pair.note,
        **{f"a_{name}": value for name, value in _side(pair.a).items()},
        **{f"b_{name}": value for name, value in _side(pair.b).items()},
    )


def pair_name(pair: Pair) -> str:
    """`net.onnx × CPU (ONNX), 1 thread → CPU (ONNX), 2 threads × mini`: each fact once where both rows share it."""
    return " × ".join(filter(None, (both(pair, "file_name"), both_units(pair), both(pair, "device_name"))))


def both(pair: Pair, field: str) -> str:
    """The two rows' fact, once where they share it. A simulated device is marked."""
    values = [
        marked(str(getattr(row, field)), field == "device_name" and row.simulated)
        for row in (pair.a, pair.b)
        if row is not None
    ]
    return " → ".join(dict.fromkeys(values))


def both_units(pair: Pair) -> str:
    """`CPU (ONNX), 2 threads`; `CPU (ONNX), 1 thread → CPU (ONNX), 2 threads`."""
    rows = [row for row in (pair.a, pair.b) if row is not None]
    return " → ".join(dict.fromkeys(unit_words(row.compute_units, row.threads, row.batch) for row in rows))


def unit_words(unit: str, threads: int | None, batch: int | None) -> str:
    """`CPU (ONNX), 2 threads, batch 8`."""
    words = unit if threads is None else f"{unit}, {count(threads, 'thread')}"
    return words if batch is None else f"{words}, batch {batch}"


def _side(row: Row | None) -> dict[str, Any]:
    return {name: None if row is None else getattr(row, field) for name, field in _SIDE.items()}


_SIDE: Final = {
    "job": "job_id",
    "model": "file_name",
    "unit": "compute_units",
    "device": "device_name",
    "median_ms": "inference_ms_median",
    "launches": "launches",
    "threads": "threads",
    "simulated": "simulated",
    "batch": "batch",
}


def matrix_of(
    rows: Sequence[Row], *, base: str = "", prices: Mapping[str, Price] | None = None
) -> ResultMatrix:
    """Of `rows`, for programs. Raises ValueError for a base that is in no row."""
    cells = make_matrix(rows, base=base, prices=prices)
    return ResultMatrix(base=base or None, cells=cells, fronts=fronts(cells))
