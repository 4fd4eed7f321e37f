"""Copies of a whole store, from SQLite and from PostgreSQL alike: a SQLite file, plain or gzipped.

Signed records and events are in the file byte for byte, so signatures and chains hold wherever it is loaded.
"""

from __future__ import annotations

import gzip
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError

from protocol.errors import CampaignError, ResourceError
from scheduler.store import schema as t
from scheduler.store.sqlite import APPLICATION_ID
from scheduler.store.store import Store
from swarm.base.durable import replacing, sync_folder

PAGE: Final = 200
"""Rows read and written at a time: each record has kilobytes, or megabytes."""
STANDALONE: Final = (t.workers, t.experiments, t.versions, t.runs)
"""Tables whose rows belong to no campaign, or outlive it."""
CHUNK: Final = 1 << 20
_GZIP: Final = b"\x1f\x8b"
_STORED: Final = {
    "TEXT": "text",
    "INTEGER": "integer",
    "BOOLEAN": "integer",
    "FLOAT": "real",
    "BLOB": "blob",
}
_RETRY: Final = "nothing of that campaign was imported; use another copy of the file"
_MAGIC: Final = b"SQLite format 3\0"
_JSON_LINES: Final = b'{"'
"""The first bytes of an export in the format used before SQLite files."""
NEITHER: Final = "neither a store of sark-node nor a gzip file of one"


@dataclass(frozen=True, slots=True)
class LoadedCampaigns:
    """What happened to the campaigns of a copy."""

    new: int = 0
    existing: int = 0
    """Already stored, and left unchanged."""
    open: int = 0
    """Not ended in the copy, and left out."""


# -- rows -------------------------------------------------------------------------------------------------------------------------------


def replace(store: Store, source: Store) -> int:
    """Replace all rows by those of `source`, in one transaction; returns the number of campaigns."""
    tables = t.metadata.sorted_tables
    with _readable(), source.database.snapshot() as rows, store.database.transaction() as c:
        for table in reversed(tables):
            c.execute(table.delete())
        for table in tables:
            _copy(rows, c, table)
    return store.database.count(t.campaigns)


def load(store: Store, source: Store, *, with_open: bool) -> LoadedCampaigns:
    """Add the campaigns that are not stored yet, each in a transaction of its own; stored campaigns stay unchanged.

    `with_open`: also campaigns that have not ended, which this home then runs.
    """
    new = existing = left_out = 0
    with _readable(), source.database.snapshot() as rows:
        with store.database.transaction() as c:
            for table in STANDALONE:
                stored = {tuple(key) for key in c.execute(sa.select(*table.primary_key))}
                for row in rows.execute(sa.select(table)).mappings():
                    if tuple(row[column] for column in table.primary_key) not in stored:
                        c.execute(table.insert().values(**row))
        ids = sa.select(t.campaigns.c.id, t.campaigns.c.ended)
        for campaign, ended in rows.execute(ids.order_by(t.campaigns.c.created, t.campaigns.c.id)).all():
            if store.campaigns.get(campaign) is not None:
                existing += 1
            elif ended is None and not with_open:
                left_out += 1
            else:
                _load_campaign(rows, store, campaign)
                new += 1
    return LoadedCampaigns(new, existing, left_out)


def _load_campaign(rows: sa.Connection, store: Store, campaign: str) -> None:
    tasks = sa.select(t.tasks.c.id).where(t.tasks.c.campaign == campaign)
    with store.database.transaction() as c:
        _copy(rows, c, t.campaigns, t.campaigns.c.id == campaign)
        for table in (t.models, t.tasks, t.results, t.events, t.sendings):
            _copy(rows, c, table, table.c.campaign == campaign)
        for table in (t.attempts, t.records):
            _copy(rows, c, table, table.c.task.in_(tasks))


def _copy(
    source: sa.Connection, target: sa.Connection, table: sa.Table, *where: sa.ColumnElement[bool]
) -> None:
    query = sa.select(table).where(*where).order_by(*table.primary_key)
    for page in source.execute(query, execution_options={"yield_per": PAGE}).mappings().partitions():
        target.execute(table.insert(), [dict(row) for row in page])


@contextmanager
def _readable() -> Iterator[None]:
    """Raise `CampaignError` on unusable rows: a file that someone else wrote may contain anything."""
    try:
        yield
    except (DBAPIError, ValueError):
        raise CampaignError(
            "rows of the file contradict each other, or cannot be read", hint=_RETRY
        ) from None


# -- files ------------------------------------------------------------------------------------------------------------------------------


def write_copy(path: Path, store: Store, *, packed: bool = False) -> None:
    """Copy the store to the SQLite file `path`, gzipped if `packed`, as of one instant. Campaigns may go on, but nothing else may use
    `store` meanwhile.

    Raises `ResourceError`. Blocking.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            copy = Path(folder) / "copy"
            copy.touch(0o600)
            if not store.copy_to(copy):
                with Store(Path(folder) / "rows") as rows:
                    replace(rows, store)
                    rows.copy_to(copy)
            if not packed:
                copy.replace(path)
                sync_folder(path.parent)
                return
            with (
                copy.open("rb") as data,
                replacing(path) as out,
                gzip.GzipFile("", "wb", compresslevel=6, fileobj=out, mtime=0) as archive,
            ):
                shutil.copyfileobj(data, archive)
    except OSError as exc:
        raise ResourceError(
            f"cannot write {path}: {exc.strerror or exc}", hint="name a file in a folder that exists"
        ) from None


@contextmanager
def open_copy(file: Path, folder: Path) -> Iterator[Store]:
    """Open the store in a file of `write_copy`, without changing the file; `folder` has space for the unpacked copy. Blocking.

    Raises `CampaignError` when the file is anything else or damaged, `ResourceError` when it cannot be unpacked.
    """
    with tempfile.TemporaryDirectory(prefix=".restore-", dir=folder) as unpacked:
        copy = Path(unpacked) / "store.db"
        _unpack(file, copy)
        with _checked(file, copy) as source:
            yield source


def _unpack(file: Path, copy: Path) -> None:
    try:
        with file.open("rb") as head:
            opened: Callable[..., Any] = gzip.open if head.read(len(_GZIP)) == _GZIP else Path.open
        with opened(file, "rb") as data:
            start = data.read(len(_MAGIC))
            if start.startswith(_JSON_LINES):
                raise CampaignError(
                    f"{file} is an export in an older format",
                    hint="this version reads SQLite files only: read it with the version that wrote it",
                )
            if start != _MAGIC:
                raise _unusable(file, NEITHER)
            with copy.open("xb", buffering=0) as out:
                part = start
                while part:
                    _write(out, part, file)
                    part = data.read(CHUNK)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise _unusable(file, "truncated or damaged") from None
    except OSError as exc:
        raise CampaignError(f"cannot read {file}: {exc.strerror or exc}") from None


def _write(out: FileIO, part: bytes, file: Path) -> None:
    try:
        rest = memoryview(part)
        while rest:
            rest = rest[out.write(rest) :]
    except OSError as exc:
        raise ResourceError(
            f"cannot unpack {file} to {out.name}: {exc.strerror}",
            hint="free some space on that disk, and repeat",
        ) from None


def _checked(file: Path, copy: Path) -> Store:
    """The store in `copy`, upgraded to this version, with its cells checked: SQLite itself lets a cell hold a value of any type."""
    try:
        with closing(sqlite3.connect(copy)) as c:
            (application,) = c.execute("PRAGMA application_id").fetchone()
            (check,) = c.execute("PRAGMA integrity_check(1)").fetchone()
        if application != APPLICATION_ID:
            raise _unusable(file, NEITHER)
        if check != "ok":
            raise _unusable(file, f"damaged: {check}")
        source = Store(copy)
    except sqlite3.DatabaseError as exc:
        raise _unusable(file, f"{NEITHER}, or damaged: {exc}") from None
    except ResourceError as exc:
        raise CampaignError(exc.what.replace(str(copy), str(file)), hint=exc.hint) from None
    with _readable():
        for column in (column for table in t.metadata.sorted_tables for column in table.c):
            stored = ("null", _STORED[column.type.compile(sqlite.dialect())])
            if source.database.count(column.table, sa.func.typeof(column, type_=sa.Text).not_in(stored)):
                source.close()
                raise _unusable(file, f"{column} has a value of the wrong type")
    return source


def _unusable(file: Path, why: str) -> CampaignError:
    return CampaignError(f"{file}: {why}", hint="nothing was changed; use another copy of the file")
