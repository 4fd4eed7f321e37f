"""The output of `compare` and `matrix` for programs, on the command line and over HTTP: results of this home compared."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from protocol.errors import CampaignError
from results.analysis.matrix import Axis, MatrixCell, Price, fronts, make_matrix
from results.analysis.pairs import Pair, pair_up, pairs_in_turns, pooled_entries
from results.analysis.sittings import pooled_rows
from results.export.raw import ResultEntry, ResultSource, read_raw
from results.row.comparison import ComparisonVerdict
from results.row.form import JsonModel
from results.row.identity import device_identity, names_device
from results.row.names import with_distinct_names
from results.row.row import COLUMNS, CONTRACT, Row
from results.row.simulated import mark_simulated
from scheduler.output.schemas import shown_as
from scheduler.store.readers import raw_results
from scheduler.store.store import Store, has_store, open_store
from swarm.base.home import Home
from swarm.base.text import count, safe_text


class PairInfo(JsonModel):
    """A row of B compared with its row of A."""

    verdict: ComparisonVerdict
    """Verdict on B, compared with A."""
    ratio: float | None
    """B's time divided by A's; null if there is no ratio."""
    ratio_low: float | None
    """Lower end of the ratio's interval, which is of 95 % unless `in_turns`; null if it is not known."""
    ratio_high: float | None
    """Upper end of the same interval."""
    p_value: float | None
    """Probability that chance alone puts the launches' ranks this far apart."""
    why: str
    note: str
    """Other facts that matter, such as that one of the rows is noisy."""
    in_turns: bool
    """Whether both models took turns. If so, `ratio` is by wall time, and its interval is that of `sark-node bench --compare`."""
    cpu_ratio: float | None
    """Ratio by CPU time of all threads; null unless both took turns and the system reports that time."""
    cpu_ratio_low: float | None
    cpu_ratio_high: float | None
    a_job: str | None
    a_model: str | None
    a_unit: str | None
    a_device: str | None
    a_median_ms: float | None
    a_launches: int | None
    a_threads: int | None
    a_simulated: bool | None
    """Whether A is simulated. Simulated results are never compared with measured ones."""
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
    sittings: int | None = None
    """Number of sittings that a comparison in turns is pooled from, by random effects; null: it is of one sitting."""


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
    """For each axis beside time: the jobs that no other job beats in both time and that axis, fastest first."""
    in_turns: tuple[PairInfo, ...] = ()
    """Comparisons of models that took turns with another on one device."""


def compare_sources(
    one: ResultSource,
    other: ResultSource,
    *,
    across_devices: bool = False,
    reference: str = "",
    seed: int = 0,
) -> tuple[ComparisonTable, list[Pair]]:
    """`other` compared with `one`: for programs, and as pairs. Some milliseconds for each pair: call it in a thread."""
    a, b = ((source.entries() if reference else pooled_entries(source.entries())) for source in (one, other))
    pairs = pair_up(a, b, across_devices=across_devices, reference=reference, seed=seed)
    return ComparisonTable(a=one.name, b=other.name, pairs=tuple(pair_info(pair) for pair in pairs)), pairs


def compared_in_turns(source: ResultSource) -> tuple[ComparisonTable, list[Pair]]:
    """The models of `source` that took turns with another. Raises `CampaignError` where none did."""
    pairs = pairs_in_turns([entry.row for entry in source.entries()])
    if not pairs:
        raise CampaignError(
            f"no models of {safe_text(source.name)} took turns: there is nothing to compare within it",
            hint="give a second result as B; or measure with measure: {against: NAME}",
        )
    return ComparisonTable(a=source.name, b=source.name, pairs=tuple(map(pair_info, pairs))), pairs


def pair_info(pair: Pair) -> PairInfo:
    """`pair` for programs."""
    result = pair.comparison
    sides = {
        f"{side}_{name}": getattr(row, field, None)
        for side, row in (("a", pair.a), ("b", pair.b))
        for name, field in _SIDE.items()
    }
    cpu = result.cpu
    return shown_as(
        PairInfo,
        result,
        ratio_low=result.low,
        ratio_high=result.high,
        note=pair.note,
        in_turns=pair.in_turns,
        sittings=pair.sittings,
        cpu_ratio=cpu and cpu.ratio,
        cpu_ratio_low=cpu and cpu.low,
        cpu_ratio_high=cpu and cpu.high,
        **sides,
    )


def pair_name(pair: Pair) -> str:
    """`net.onnx × CPU (ONNX), 1 thread → CPU (ONNX), 2 threads × mini`: a fact that both rows share appears once."""
    return " × ".join(filter(None, pair_places(pair)))


def pair_places(pair: Pair) -> tuple[str, str, str]:
    """Model, unit and device of both rows; a fact that they share appears once. A simulated device is marked."""
    rows = with_distinct_names([row for row in (pair.a, pair.b) if row is not None])
    units = [unit_words(row.compute_units, row.threads, row.batch) for row in rows]
    devices = [mark_simulated(row.device_name, bool(row.simulated)) for row in rows]
    models = [row.file_name for row in rows]
    model, unit, device = (" → ".join(dict.fromkeys(names)) for names in (models, units, devices))
    return model, unit, device


def unit_words(unit: str, threads: int | None, batch: int | None) -> str:
    """`CPU (ONNX), 2 threads, batch 8`."""
    words = unit if threads is None else f"{unit}, {count(threads, 'thread')}"
    return words if batch is None else f"{words}, batch {batch}"


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
    """The matrix of `rows`. Raises `ValueError` for a base that no row has."""
    cells = make_matrix(pooled_rows(rows), base=base, prices=prices)
    turned = tuple(map(pair_info, pairs_in_turns(rows)))
    return ResultMatrix(base=base or None, cells=cells, fronts=fronts(cells), in_turns=turned)


MAX_FILE = 1024 * 1024 * 1024


def read_source(name: str, home: Home) -> ResultSource:
    """Results by `name`: the path of a raw file or a CSV, else a campaign of this home (the latest for an empty name), or one task of it
    (`c-…/3`).

    Raises `CampaignError` for anything else. Blocking.
    """
    path = Path(name)
    if path.is_file():
        return _read_file(path)
    if name and (path.suffix or len(path.parts) > 2 or not has_store(home)):
        raise CampaignError(
            f"there is no file {safe_text(name)}, and this home has no campaign with that name",
            hint="name a file of sark-node results --raw or --csv, or a campaign: sark-node campaigns",
        )
    with open_store(home) as store:
        return stored_source(store, name)


def stored_source(store: Store, name: str) -> ResultSource:
    """Results of a campaign in the store (the latest for an empty name), or of one task of it (`c-…/3`). Raises `CampaignError`."""
    campaign, _, number = name.partition("/")
    outcome = store.campaigns.resolve(campaign)
    whole = tuple(raw_results(store.results.rows(outcome), store.campaigns.evaluations(outcome)))
    results = tuple(item for item in whole if not number or item.row.job_id == f"{outcome}/{number}")
    if number and not results:
        raise CampaignError(
            f"no task {safe_text(number, 40)} of {outcome} has ended", hint=f"sark-node results {outcome}"
        )
    return ResultSource(name or outcome, outcome, results, whole=whole)


def read_text(path: Path) -> str:
    """The whole text of a results file. Raises `CampaignError`. Blocking."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise CampaignError(f"{path} is larger than {MAX_FILE:,} bytes")
        return path.read_bytes().decode("utf-8")
    except OSError as exc:
        raise CampaignError(f"cannot read {path}: {exc.strerror}") from None
    except UnicodeDecodeError:
        raise CampaignError(f"{path} is not a text file, so it cannot be a file of results") from None


def _read_file(path: Path) -> ResultSource:
    text = read_text(path)
    if not text.lstrip().startswith("{"):
        rows = read_table(text, str(path))
        return ResultSource(path.name, rows[0].campaign if rows else "", (), text, rows)
    try:
        results = read_raw(text.encode())
    except (ValueError, RecursionError) as exc:
        why = "its structure is wrong" if isinstance(exc, ValidationError) else str(exc)
        raise CampaignError(
            f"{path} is not a file of raw results: {safe_text(why, 200)}",
            hint="sark-node results --raw FILE writes one",
        ) from None
    return ResultSource(path.name, results[0].row.campaign if results else "", results, text)


def read_table(text: str, name: str) -> tuple[Row, ...]:
    """The rows of a CSV. Raises `CampaignError`."""
    hint = "sark-node results --raw FILE or --csv FILE writes one"
    reader = csv.DictReader(io.StringIO(text, newline=""))
    rows = []
    try:
        if tuple(reader.fieldnames or ())[:CONTRACT] != COLUMNS[:CONTRACT]:
            raise CampaignError(f"{safe_text(name)} is neither raw results nor a CSV of results", hint=hint)
        for cells in reader:
            values = {head: cell for head, cell in cells.items() if head in COLUMNS and cell}
            rows.append(Row.model_validate(values))
    except csv.Error as exc:
        raise CampaignError(
            f"{safe_text(name)} is not a CSV: {safe_text(str(exc), 100)}", hint=hint
        ) from None
    except ValidationError as exc:
        column = exc.errors()[0]["loc"][0]
        raise CampaignError(
            f"{safe_text(name)}: line {reader.line_num} has an invalid {column}", hint="write the CSV again"
        ) from None
    return tuple(rows)


def one_device(source: ResultSource, device: str) -> ResultSource:
    """Only the results of one device, by its name, id or key. Raises `CampaignError` if no device matches, or several do."""
    results = tuple(result for result in source.results if names_device(device, result.row))
    rows = tuple(row for row in source.rows if names_device(device, row))
    keys = dict.fromkeys(filter(None, map(device_identity, (*(result.row for result in results), *rows))))
    if len(keys) > 1:
        raise CampaignError(
            f"{len(keys)} devices in {safe_text(source.name)} match {safe_text(device, 60)!r}",
            hint=f"name one by its key: {', '.join(safe_text(key.rpartition(' ')[2]) for key in keys)}",
        )
    if not results and not rows:
        devices = sorted({entry.row.device_name for entry in source.entries() if entry.row.device_name})
        raise CampaignError(
            f"no device {safe_text(device, 60)!r} in {safe_text(source.name)}",
            hint=f"devices there: {safe_text(', '.join(devices)) or 'none'}",
        )
    return replace(source, name=device, results=results, rows=rows)


def merged(sources: Sequence[ResultSource]) -> tuple[ResultEntry, ...]:
    """The entries of all sources, in order."""
    return tuple(entry for source in sources for entry in source.entries())
