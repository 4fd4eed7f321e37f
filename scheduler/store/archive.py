"""A store in one file: gzipped JSON Lines, the same from SQLite and from PostgreSQL, readable by anything.

    {"format": "sark store 1", "version": 4}         what it is, and how many migrations its tables have been through
    {"table": "campaigns", "row": {…}}               a row; bytes are in base64
    {"end": {"lines": 812, "sha256": "ab…"}}         over all lines before: a file that was cut off or damaged is told apart

Signed records and events are in it byte for byte, so that signatures and chains hold wherever it is read in.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final

import sqlalchemy as sa

from protocol.errors import CampaignError, ResourceError
from protocol.words import UNIT
from results.row.verdict import RowVerdict
from scheduler.store import schema as t
from scheduler.store.migrations import MIGRATIONS
from scheduler.store.transfer import TABLES, Entry, Transfer
from swarm.base.durable import replacing

FORMAT: Final = "sark store 1"
MAX_LINE: Final = 512 * 1024 * 1024


def write_archive(path: Path, entries: Iterable[Entry]) -> int:
    """Write all of it to `path`, which appears whole or not at all, for its owner alone; gives how many campaigns. Raises `ResourceError`.
    Blocking."""
    campaigns = 0

    def write(out: IO[bytes]) -> None:
        nonlocal campaigns
        digest, lines = hashlib.sha256(), 0
        with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=6, mtime=0, filename="") as packed:
            for line in _lines(entries):
                digest.update(line)
                packed.write(line)
                lines += 1
                campaigns += line.startswith(b'{"table": "campaigns"')
            packed.write(_line({"end": {"lines": lines, "sha256": digest.hexdigest()}}))

    replace_whole(path, write)
    return campaigns


def write_backup(path: Path, store: Transfer) -> None:
    """Copy all of `store` into `path`, which appears whole, for its owner alone: a SQLite file, or of a server's store an archive.
    Campaigns may go on. Raises `ResourceError`. Blocking."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.unlink(missing_ok=True)
        part.touch(0o600)
        if store.copy_file(part):
            part.replace(path)
        else:
            write_archive(path, store.dump())
    except OSError as exc:
        raise ResourceError(
            f"cannot write {path}: {exc.strerror or exc}", hint="name a file in a folder that exists"
        ) from None
    finally:
        part.unlink(missing_ok=True)


def replace_whole(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Make a file of 0600 that is whole and on the disk when it appears. Raises `ResourceError`."""
    try:
        with replacing(path) as out:
            write(out)
    except OSError as exc:
        raise ResourceError(
            f"cannot write {path}: {exc.strerror or exc}", hint="name a file in a folder that exists"
        ) from None


def _lines(entries: Iterable[Entry]) -> Iterator[bytes]:
    yield _line({"format": FORMAT, "version": len(MIGRATIONS)})
    for name, row in entries:
        told = {
            key: base64.b64encode(value).decode() if isinstance(value, bytes | memoryview) else value
            for key, value in row.items()
        }
        yield _line({"table": name, "row": told})


def _line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, allow_nan=False).encode() + b"\n"


def check_archive(path: Path) -> None:
    """See that it is whole and every row can be read, before anything is changed. Raises `CampaignError`, `ResourceError`. Blocking."""
    for _ in read_archive(path):
        pass


def read_archive(path: Path) -> Iterator[Entry]:
    """Its rows, each as its table wants it. Raises `CampaignError` for what is no archive, or a damaged one, at the latest at the end."""
    digest, number, over = hashlib.sha256(), 0, False
    try:
        with gzip.open(path, "rb") as packed:
            while line := packed.readline(MAX_LINE):
                if over:
                    raise _bad(path, number, "there is more after its end")
                number += 1
                value = _value(path, number, line)
                if number == 1:
                    _check_head(path, value)
                elif "end" in value:
                    over = value["end"] == {"lines": number - 1, "sha256": digest.hexdigest()}
                    if not over:
                        raise _bad(path, number, "its end does not fit: lines were changed or are missing")
                else:
                    yield _entry(path, number, value)
                digest.update(line)
    except OSError as exc:
        if isinstance(exc, gzip.BadGzipFile):
            raise _bad(path, number, "it is no gzip file, or damaged") from None
        raise ResourceError(f"cannot read {path}: {exc.strerror or exc}") from None
    except (EOFError, zlib.error):
        raise _bad(path, number, "it is cut off or damaged") from None
    if not over:
        raise _bad(path, number, "it has no end: it is cut off")


def _value(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _bad(path, number, "no JSON object")
    return value


def _check_head(path: Path, value: dict[str, Any]) -> None:
    version = value.get("version")
    if value.get("format") != FORMAT or not isinstance(version, int):
        raise CampaignError(f"{path} is no export of a store", hint="sark-node db export FILE writes one")
    if version > len(MIGRATIONS):
        raise CampaignError(
            f"{path} was written by a newer sark-node (store version {version}, this one knows {len(MIGRATIONS)})",
            hint="upgrade sark-node",
        )


def _entry(path: Path, number: int, value: dict[str, Any]) -> Entry:
    name, row = value.get("table"), value.get("row")
    table = TABLES.get(name) if isinstance(name, str) else None
    if table is None or not isinstance(row, dict):
        raise _bad(path, number, "no row of a table that is known")
    unknown = set(row) - {column.name for column in table.c}
    if unknown:
        raise _bad(path, number, f"{table.name} has no column {min(unknown)!r}")
    found = {}
    for column in table.c:
        if column.name in row:
            found[column.name] = _cell(path, number, column, row[column.name])
        elif not column.nullable and column.default is None:
            raise _bad(path, number, f"the row has no {column.name!r}")
    if table is t.results and found.get("unit") == UNIT and found.get("verdict"):
        found["verdict"] = str(
            RowVerdict.SIMULATED
        )  # files from before simulations had a verdict of their own
    return table.name, found


def _cell(path: Path, number: int, column: sa.Column[Any], value: Any) -> Any:
    kind = column.type
    wanted: tuple[type, ...] = (str,)
    if isinstance(kind, sa.Boolean):
        wanted = (bool,)
    elif isinstance(kind, sa.Integer):
        wanted = (int,)
    elif isinstance(kind, sa.Float):
        wanted = (int, float)
    fits = isinstance(value, wanted) and isinstance(value, bool) == (wanted == (bool,))
    if value is None and column.nullable:
        return None
    if not fits:
        raise _bad(path, number, f"{column.name!r} cannot be what it is there")
    if isinstance(kind, sa.LargeBinary):
        try:
            return base64.b64decode(str(value), validate=True)
        except (binascii.Error, ValueError):
            raise _bad(path, number, f"{column.name!r} is no base64") from None
    return float(value) if isinstance(kind, sa.Float) and isinstance(value, int | float) else value


def _bad(path: Path, number: int, why: str) -> CampaignError:
    return CampaignError(
        why, file=str(path), line=max(number, 1), hint="nothing was changed; take another copy"
    )
