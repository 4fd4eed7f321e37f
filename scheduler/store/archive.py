"""A whole store as rows, and as one file: gzipped JSON Lines, the same from SQLite and from PostgreSQL, readable by anything.

    {"format": "sark store archive 1", "version": 1}    the archive format, and the schema version of the store
    {"table": "campaigns", "row": {…}}                  a row; bytes are in base64
    {"end": {"lines": 812, "sha256": "ab…"}}            over all lines before: detects a truncated or damaged file

Signed records and events are in it byte for byte, so signatures and chains hold wherever it is loaded.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import json
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from protocol.errors import CampaignError, ResourceError
from scheduler.store import schema as t
from scheduler.store.store import Store
from swarm.base.durable import replacing

FORMAT: Final = "sark store archive 1"
MAX_LINE: Final = 512 * 1024 * 1024
PAGE: Final = 200
"""Tasks that are read at once, and rows that are written at once: each row has a record of kilobytes, or of megabytes."""

T = TypeVar("T")
Entry = tuple[str, dict[str, Any]]
"""A table's name, and one of its rows by column."""

BY_TASK: Final = (t.attempts, t.records, t.results)
STANDALONE: Final = (t.workers, t.experiments, t.versions, t.runs)
"""Tables whose rows belong to no campaign, or outlive it."""
TABLES: Final[dict[str, sa.Table]] = {
    table.name: table for table in (t.campaigns, t.models, t.tasks, *BY_TASK, t.events, *STANDALONE)
}
_RETRY: Final = "nothing of that campaign was imported; use another copy of the file"


@dataclass(frozen=True, slots=True)
class LoadedCampaigns:
    """What became of the campaigns of an archive."""

    new: int = 0
    known: int = 0
    """Already stored, and left as they are."""
    open: int = 0
    """Not ended in the archive, and left out."""


# -- rows of a store --------------------------------------------------------------------------------------------------------------------


def dump(store: Store, page: int = PAGE) -> Iterator[Entry]:
    """All rows as of one instant, each campaign's together and each after those it refers to. Nothing else may use `store` meanwhile."""
    with store.database.snapshot() as c:
        for table in STANDALONE:
            yield from _rows(c, table)
        ids = c.execute(sa.select(t.campaigns.c.id).order_by(t.campaigns.c.created, t.campaigns.c.id))
        for campaign in ids.scalars().all():
            yield from _campaign(c, campaign, page)


def _rows(c: sa.Connection, table: sa.Table, *where: sa.ColumnElement[bool]) -> Iterator[Entry]:
    for row in c.execute(sa.select(table).where(*where).order_by(*table.primary_key)):
        yield table.name, dict(row._mapping)


def _campaign(c: sa.Connection, campaign: str, page: int) -> Iterator[Entry]:
    yield from _rows(c, t.campaigns, t.campaigns.c.id == campaign)
    yield from _rows(c, t.models, t.models.c.campaign == campaign)
    n = t.tasks.c.n
    numbers = sa.select(n).where(t.tasks.c.campaign == campaign).order_by(n)
    for some in _batched(c.execute(numbers).scalars().all(), page):
        within = (t.tasks.c.campaign == campaign, n >= some[0], n <= some[-1])
        for row in c.execute(sa.select(t.tasks).where(*within).order_by(n)):
            yield t.tasks.name, dict(row._mapping)
        for table in BY_TASK:
            yield from _rows(c, table, table.c.task.in_(sa.select(t.tasks.c.id).where(*within)))
    seq, step = t.events.c.seq, page * 10
    last = c.execute(sa.select(sa.func.max(seq)).where(t.events.c.campaign == campaign)).scalar() or 0
    for start in range(0, last, step):
        yield from _rows(c, t.events, t.events.c.campaign == campaign, seq > start, seq <= start + step)


def load(store: Store, entries: Iterable[Entry], *, with_open: bool) -> LoadedCampaigns:
    """Add what is not stored yet, each campaign in a transaction of its own; stored campaigns stay as they are.

    `with_open`: also campaigns that have not ended, which this home then runs.
    """
    new = known = left_out = 0
    for campaign, rows in groupby(entries, key=_campaign_key()):
        if campaign is None:
            with _integrity(), store.database.transaction() as c:
                for name, row in rows:
                    table = TABLES[name]
                    key = [column == row[column.name] for column in table.primary_key]
                    if not c.execute(sa.select(sa.literal(1)).select_from(table).where(*key)).first():
                        c.execute(table.insert().values(**row))
            continue
        first = next(rows)
        if store.campaigns.get(campaign) is not None:
            known += 1
        elif first[1]["ended"] is None and not with_open:
            left_out += 1
        else:
            with _integrity(), store.database.transaction() as c:
                _insert(c, [first])
                _insert(c, rows)  # noqa: B031  (the rest of the group)
            new += 1
    return LoadedCampaigns(new, known, left_out)


def replace(store: Store, entries: Iterable[Entry]) -> int:
    """Replace all rows by these, in one transaction; gives the number of campaigns."""
    with _integrity(), store.database.transaction() as c:
        for table in reversed(t.metadata.sorted_tables):
            c.execute(table.delete())
        _insert(c, entries)
        return int(c.execute(sa.select(sa.func.count()).select_from(t.campaigns)).scalar_one())


def _insert(c: sa.Connection, entries: Iterable[Entry]) -> None:
    for name, group in groupby(entries, key=lambda entry: entry[0]):
        for some in _batched(group, PAGE):
            c.execute(TABLES[name].insert(), [row for _, row in some])


def _batched(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    iterator = iter(items)
    while batch := tuple(islice(iterator, size)):
        yield batch


def _campaign_key() -> Callable[[Entry], str | None]:
    """The campaign that a row belongs to: the last one before it; None for standalone rows."""
    campaign: str | None = None

    def key(entry: Entry) -> str | None:
        nonlocal campaign
        name, row = entry
        if TABLES[name] in STANDALONE:
            return None
        if name == t.campaigns.name:
            campaign = str(row["id"])
        if campaign is None:
            raise CampaignError("a row comes before its campaign", hint=_RETRY)
        return campaign

    return key


@contextmanager
def _integrity() -> Iterator[None]:
    try:
        yield
    except IntegrityError:
        raise CampaignError("rows of the file contradict each other", hint=_RETRY) from None


# -- files ------------------------------------------------------------------------------------------------------------------------------


def write_backup(path: Path, store: Store) -> None:
    """Copy the store to `path`: a SQLite file, or an archive of a server's store. Campaigns may go on. Raises `ResourceError`. Blocking."""
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            copy = Path(folder) / "copy"
            copy.touch(0o600)
            if store.copy_to(copy):
                copy.replace(path)
                return
    except OSError as exc:
        raise _unwritable(path, exc) from None
    write_archive(path, dump(store))


def write_archive(path: Path, entries: Iterable[Entry]) -> int:
    """Write an archive; gives the number of campaigns. Raises `ResourceError`. Blocking."""
    digest, lines, campaigns = hashlib.sha256(), 0, 0
    try:
        with (
            replacing(path) as out,
            gzip.GzipFile(fileobj=out, mode="wb", compresslevel=6, mtime=0, filename="") as packed,
        ):
            for line in _lines(entries):
                digest.update(line)
                packed.write(line)
                lines += 1
                campaigns += line.startswith(b'{"table": "campaigns"')
            packed.write(_line({"end": {"lines": lines, "sha256": digest.hexdigest()}}))
    except OSError as exc:
        raise _unwritable(path, exc) from None
    return campaigns


def _unwritable(path: Path, exc: OSError) -> ResourceError:
    return ResourceError(
        f"cannot write {path}: {exc.strerror or exc}", hint="name a file in a folder that exists"
    )


def _lines(entries: Iterable[Entry]) -> Iterator[bytes]:
    yield _line({"format": FORMAT, "version": len(t.MIGRATIONS)})
    for name, row in entries:
        cells = {
            key: base64.b64encode(value).decode() if isinstance(value, bytes | memoryview) else value
            for key, value in row.items()
        }
        yield _line({"table": name, "row": cells})


def _line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, allow_nan=False).encode() + b"\n"


def check_archive(path: Path) -> None:
    """Read an archive to its end. Raises `CampaignError`, `ResourceError`. Blocking."""
    for _ in read_archive(path):
        pass


def read_archive(path: Path) -> Iterator[Entry]:
    """The rows of an archive. Raises `CampaignError` for a file that is not an archive or is damaged, at the latest at the end."""
    digest, number, complete = hashlib.sha256(), 0, False
    try:
        with gzip.open(path, "rb") as packed:
            while line := packed.readline(MAX_LINE):
                if complete:
                    raise _damaged(path, number, "there are lines after the end line")
                number += 1
                value = _parse(path, number, line)
                if number == 1:
                    _check_head(path, value)
                elif "end" in value:
                    complete = value["end"] == {"lines": number - 1, "sha256": digest.hexdigest()}
                    if not complete:
                        raise _damaged(
                            path, number, "the checksum is wrong: lines were changed or are missing"
                        )
                else:
                    yield _entry(path, number, value)
                digest.update(line)
    except gzip.BadGzipFile:
        raise _damaged(path, number, "not a gzip file, or damaged") from None
    except OSError as exc:
        raise ResourceError(f"cannot read {path}: {exc.strerror or exc}") from None
    except (EOFError, zlib.error):
        raise _damaged(path, number, "the file is truncated or damaged") from None
    if not complete:
        raise _damaged(path, number, "the end line is missing: the file is truncated")


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _damaged(path, number, "not a JSON object")
    return value


def _check_head(path: Path, value: dict[str, Any]) -> None:
    version = value.get("version")
    if value.get("format") != FORMAT or not isinstance(version, int):
        raise CampaignError(
            f"{path} is not an archive of a store", hint="sark-node db export FILE writes one"
        )
    if version > len(t.MIGRATIONS):
        raise CampaignError(
            f"{path} was written by a newer sark-node (store version {version}, this one knows {len(t.MIGRATIONS)})",
            hint="upgrade sark-node",
        )


def _entry(path: Path, number: int, value: dict[str, Any]) -> Entry:
    name, row = value.get("table"), value.get("row")
    table = TABLES.get(name) if isinstance(name, str) else None
    if table is None or not isinstance(row, dict):
        raise _damaged(path, number, "not a row of a known table")
    unknown = set(row) - set(table.c.keys())
    if unknown:
        raise _damaged(path, number, f"{table.name} has no column {min(unknown)!r}")
    for column in table.c:
        if column.name in row:
            row[column.name] = _cell(path, number, column, row[column.name])
        elif not column.nullable and column.default is None:
            raise _damaged(path, number, f"the row has no {column.name!r}")
    return table.name, row


def _cell(path: Path, number: int, column: sa.Column[Any], value: Any) -> Any:
    if value is None:
        if column.nullable:
            return None
        raise _damaged(path, number, f"{column.name!r} has a value of the wrong type")
    match column.type:
        case sa.Boolean():
            fits = isinstance(value, bool)
        case sa.Integer():
            fits = isinstance(value, int) and not isinstance(value, bool)
        case sa.Float():
            fits = isinstance(value, int | float) and not isinstance(value, bool)
            value = float(value) if fits else value
        case sa.LargeBinary():
            try:
                value = base64.b64decode(value, validate=True)
                fits = True
            except (binascii.Error, TypeError, ValueError):
                fits = False
        case _:
            fits = isinstance(value, str)
    if not fits:
        raise _damaged(path, number, f"{column.name!r} has a value of the wrong type")
    return value


def _damaged(path: Path, number: int, why: str) -> CampaignError:
    return CampaignError(
        why, file=str(path), line=max(number, 1), hint="nothing was changed; use another copy of the file"
    )
