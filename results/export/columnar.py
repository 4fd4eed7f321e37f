"""Results for other programs: JSON Lines and Parquet, one row per task with its raw samples. `results/export/csv.py` writes the CSV.

The columns are those of the CSV, then the samples launch by launch, in nanoseconds. Texts are single lines of visible characters, as in the
CSV; the raw results (`results --raw`) have them byte for byte under their signatures. Parquet columns carry their unit and meaning.
"""

from __future__ import annotations

import io
import json
import typing
from collections.abc import Iterable, Iterator
from enum import StrEnum
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

from protocol.errors import ResourceError
from results.export.csv import CELL
from results.export.raw import RawResult, replace_bytes
from results.row.row import Row, column_meanings, column_name
from swarm.base.text import safe_text

INSTALL: Final = "python -m pip install 'sark-node[report]'"
GROUP: Final = 1000
"""Results in a row group of Parquet, and so in memory at once."""
MAX_INT: Final = 2**63 - 1
SAMPLES: Final[dict[str, str]] = {
    "LoadsNs": "Time of each load, in order, in nanoseconds.",
    "LoadKinds": "Kind of each load: cold, fresh or warm.",
    "WarmupsNs": "Times of the warm-up inferences in nanoseconds: a list for each launch, in order.",
    "InferencesNs": "Timed samples in nanoseconds: a list for each launch, in order. Each is the mean of PerSample inferences.",
}
"""The columns after those of the CSV, with their meanings."""

_UNITS: Final = (  # the first suffix of the field's name decides
    ("_percent", "%"),
    ("gpu_util", "%"),
    ("_mhz", "MHz"),
    ("_ns", "ns"),
    ("_mb", "MB"),
    ("_ram_usage", "MB"),
    ("_ram_total", "MB"),
    ("temperature_c", "°C"),
    ("power_w", "W"),
    ("_j", "J"),
    ("_per_second", "1/s"),
    ("_per_s", "1/s"),
    ("_s", "s"),
    ("goodput", "1/s"),
    ("file_size", "B"),
)


def unit_of(field: str) -> str:
    """The unit of a field of `Row`: `ms`, `MB` (of 1,048,576 bytes), `GB`, …; empty for texts, counts and shares."""
    if "_ms_" in f"{field}_":
        return "ms"
    if field == "ram":
        return "GB"
    return next((unit for end, unit in _UNITS if field.endswith(end)), "")


# -- JSON Lines ----------------------------------------------------------------------------------------------------------------------


def jsonl_lines(results: Iterable[RawResult]) -> Iterator[str]:
    """One JSON object per result, each on its own line. All characters are ASCII, so that none controls a terminal."""
    for result in results:
        yield json.dumps(_cells(result)) + "\n"


def _cells(result: RawResult) -> dict[str, Any]:
    """Cells by column, in order."""
    cells = {column_name(name): _cell(getattr(result.row, name)) for name in Row.model_fields}
    return cells | {
        "LoadsNs": list(result.loads_ns),
        "LoadKinds": [safe_text(kind, 20) for kind in result.load_kinds],
        "WarmupsNs": [list(launch) for launch in result.warmup_launches],
        "InferencesNs": [list(launch) for launch in result.launches],
    }


def _cell(value: object) -> object:
    return safe_text(str(value), CELL) if isinstance(value, str) else value


# -- Parquet ---------------------------------------------------------------------------------------------------------------------------


def import_extra(module: str, what: str) -> Any:
    """Import a module of the extra `[report]`. Raises `ResourceError` if it is not installed."""
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise ResourceError(
            f"{what} needs the package {package}, which is not installed", hint=INSTALL
        ) from None


def write_parquet(path: Path, campaign: str, results: Iterable[RawResult]) -> None:
    """Write `results` to `path`, all or nothing. Raises `ResourceError`, also if pyarrow is missing. Blocking."""
    import_extra("pyarrow.parquet", "Parquet")  # before creating a file
    replace_bytes(path, lambda out: _write(out, campaign, results))


def parquet_bytes(campaign: str, results: Iterable[RawResult]) -> bytes:
    """A Parquet file of `results`; the same results give the same bytes. Raises `ResourceError` if pyarrow is missing. Blocking."""
    out = io.BytesIO()
    _write(out, campaign, results)
    return out.getvalue()


def _write(out: IO[bytes], campaign: str, results: Iterable[RawResult]) -> None:
    arrow, parquet = import_extra("pyarrow", "Parquet"), import_extra("pyarrow.parquet", "Parquet")
    schema = _schema(arrow, campaign)
    left = iter(results)
    with parquet.ParquetWriter(out, schema, compression="zstd") as writer:
        while lines := [_cells(result) for result in islice(left, GROUP)]:
            for line in lines:
                line.update({name: _fitting(value) for name, value in line.items()})
            writer.write_table(arrow.Table.from_pylist(lines, schema=schema))


def _fitting(value: Any) -> Any:
    """None for an empty text, which means not measured, and for an integer beyond 64 bits, which no device measured."""
    if isinstance(value, list):
        return [_fitting(item) for item in value]
    if isinstance(value, int) and value > MAX_INT:
        return None
    return None if value == "" else value


def _schema(arrow: Any, campaign: str) -> Any:
    meanings = column_meanings()
    fields = [
        arrow.field(
            column_name(name),
            _type(arrow, name),
            metadata=_metadata(unit_of(name), meanings[column_name(name)]),
        )
        for name in Row.model_fields
    ]
    times = arrow.list_(arrow.int64())
    kinds = {"LoadsNs": times, "LoadKinds": arrow.list_(arrow.string())}
    fields += [
        arrow.field(
            name,
            kinds.get(name, arrow.list_(times)),
            metadata=_metadata("ns" if name.endswith("Ns") else "", meaning),
        )
        for name, meaning in SAMPLES.items()
    ]
    return arrow.schema(fields, metadata={"sark": "results 1", "campaign": safe_text(campaign)})


def _metadata(unit: str, meaning: str) -> dict[str, str]:
    return ({"unit": unit} if unit else {}) | {"description": " ".join(meaning.split())}


def _type(arrow: Any, name: str) -> Any:
    kind = Row.model_fields[name].annotation
    inner: Any = next((part for part in typing.get_args(kind) if part is not type(None)), kind)
    if isinstance(inner, type) and issubclass(inner, StrEnum):
        return arrow.string()
    return {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}[inner]
