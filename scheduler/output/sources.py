"""Where results come from that are compared, put into a matrix or verified: a file of raw results, a CSV, or this home's store.

Reading only; nothing here judges.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from protocol.errors import CampaignError
from results.export.raw import ResultEntry, ResultSource, read_raw
from results.row.row import COLUMNS, CONTRACT, Row
from scheduler.store.opening import has_store, open_store
from scheduler.store.queries import find_campaign
from scheduler.store.results import raw_results
from scheduler.store.store import Store
from swarm.base.home import Home
from swarm.base.text import safe_text

MAX_FILE = 1024 * 1024 * 1024


def read_source(name: str, home: Home) -> ResultSource:
    """Results by `name`: the path of a raw file or a CSV, else a campaign of this home (the latest for an empty name), or one task of it
    (`c-…/3`).

    Raises `CampaignError` for what is none of these. Blocking.
    """
    path = Path(name)
    if path.is_file():
        return _read_file(path)
    if name and (path.suffix or len(path.parts) > 2 or not has_store(home)):
        raise CampaignError(
            f"there is no file {safe_text(name)}, and no campaign of that name on this home",
            hint="name a file of sark-node results --raw or --csv, or a campaign: sark-node campaigns",
        )
    with open_store(home) as store:
        return stored_source(store, name)


def stored_source(store: Store, name: str) -> ResultSource:
    """Results of a campaign in the store (the latest for an empty name), or of one task of it (`c-…/3`). Raises `CampaignError`."""
    campaign, _, number = name.partition("/")
    found = find_campaign(store, campaign)
    whole = tuple(raw_results(store.rows(found)))
    results = whole
    if number:
        results = tuple(result for result in whole if result.row.job_id == f"{found}/{number}")
        if not results:
            raise CampaignError(
                f"no task {safe_text(number, 40)} of {found} has ended", hint=f"sark-node results {found}"
            )
    return ResultSource(name or found, found, results, whole=whole)


def read_text(path: Path) -> str:
    """The whole of a file of results. Raises `CampaignError`. Blocking."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise CampaignError(f"{path} is larger than {MAX_FILE:,} bytes")
        return path.read_bytes().decode("utf-8")
    except OSError as exc:
        raise CampaignError(f"cannot read {path}: {exc.strerror}") from None
    except UnicodeDecodeError:
        raise CampaignError(f"{path} is not text, so no file of results") from None


def _read_file(path: Path) -> ResultSource:
    text = read_text(path)
    if text.lstrip().startswith("{"):
        try:
            results = read_raw(text.encode())
        except (ValueError, RecursionError) as exc:
            told = "its form is wrong" if isinstance(exc, ValidationError) else str(exc)
            raise CampaignError(
                f"{path} is no file of raw results: {safe_text(told, 200)}",
                hint="sark-node results --raw FILE writes one",
            ) from None
        campaign = results[0].row.campaign if results else ""
        return ResultSource(path.name, campaign, results, text)
    rows = read_table(text, str(path))
    return ResultSource(path.name, rows[0].campaign if rows else "", (), text, rows)


def read_table(text: str, name: str) -> tuple[Row, ...]:
    """The rows of a CSV. Raises `CampaignError`."""
    try:
        return _rows(text, name)
    except csv.Error as exc:
        raise CampaignError(
            f"{safe_text(name)} is no CSV: {safe_text(str(exc), 100)}",
            hint="sark-node results --raw FILE or --csv FILE writes one",
        ) from None


def _rows(text: str, name: str) -> tuple[Row, ...]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    if tuple(reader.fieldnames or ())[:CONTRACT] != COLUMNS[:CONTRACT]:
        raise CampaignError(
            f"{safe_text(name)} is neither raw results nor a CSV of results",
            hint="sark-node results --raw FILE or --csv FILE writes one",
        )
    rows = []
    for number, cells in enumerate(reader, start=2):
        told = {head: cell for head, cell in cells.items() if head in COLUMNS and cell}
        try:
            rows.append(Row.model_validate(told))
        except ValidationError as exc:
            column = str(exc.errors()[0]["loc"][0])
            raise CampaignError(
                f"{safe_text(name)}: line {number} has a wrong {column}", hint="write the CSV again"
            ) from None
    return tuple(rows)


def one_device(source: ResultSource, device: str) -> ResultSource:
    """Only what one device measured, by its name or id."""
    results = tuple(
        result for result in source.results if device in (result.row.device_name, result.row.device_id)
    )
    rows = tuple(row for row in source.rows if device in (row.device_name, row.device_id))
    if not results and not rows:
        known = sorted({entry.row.device_name for entry in source.entries() if entry.row.device_name})
        raise CampaignError(
            f"no device {safe_text(device, 60)!r} in {safe_text(source.name)}",
            hint=f"devices there: {safe_text(', '.join(known)) or 'none'}",
        )
    return replace(source, name=device, results=results, rows=rows)


def merged(sources: Sequence[ResultSource]) -> tuple[ResultEntry, ...]:
    """The entries of all, in order."""
    return tuple(entry for source in sources for entry in source.entries())
