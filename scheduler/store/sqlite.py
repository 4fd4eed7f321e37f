"""A store in a file: SQLite in WAL mode. `PRAGMA user_version` is the schema version where `PRAGMA application_id` is ours."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from protocol.errors import ResourceError
from scheduler.store.database import BUSY_MS, Backend
from swarm.base.durable import make_folder

APPLICATION_ID: Final = int.from_bytes(b"Sark")


class SQLite(Backend):
    """A file on a local disk. A lock in the home's folder decides which process schedules, so nothing needs to be claimed."""

    def __init__(self, path: Path) -> None:
        self.location = self.path = path

    def engine(self) -> sa.Engine:
        make_folder(self.path.parent)
        return sa.create_engine(
            f"sqlite:///{self.path}",
            isolation_level="AUTOCOMMIT",
            poolclass=sa.NullPool,
            connect_args={"timeout": BUSY_MS / 1000, "check_same_thread": False},
        )

    def set_up(self, c: sa.Connection) -> None:
        c.exec_driver_sql(f"PRAGMA busy_timeout = {BUSY_MS}")
        mode = c.exec_driver_sql("PRAGMA journal_mode = WAL").scalar_one()
        c.exec_driver_sql("PRAGMA synchronous = FULL")
        c.exec_driver_sql("PRAGMA foreign_keys = ON")
        flushed = _pragma(c, "synchronous")
        if mode != "wal" or flushed != 2:
            raise ResourceError(
                f"{self.path}: this folder cannot hold a store (journal {mode}, synchronous {flushed})",
                hint="use a --home on a local disk",
            )

    def begin(self, c: sa.Connection) -> None:
        c.exec_driver_sql("BEGIN IMMEDIATE")

    def commit(self, c: sa.Connection) -> None:
        c.exec_driver_sql("COMMIT")

    def roll_back(self, c: sa.Connection) -> None:
        driver: Any = c.connection.driver_connection
        if driver.in_transaction:  # SQLite may have undone it itself, as it does on a full disk
            c.exec_driver_sql("ROLLBACK")

    def begin_snapshot(self, c: sa.Connection) -> None:
        c.exec_driver_sql("BEGIN")

    def version(self, c: sa.Connection) -> int:
        return _pragma(c, "user_version") if _pragma(c, "application_id") == APPLICATION_ID else 0

    def set_version(self, c: sa.Connection, version: int) -> None:
        c.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
        c.exec_driver_sql(f"PRAGMA user_version = {version}")

    def changes(self, c: sa.Connection) -> int:
        """Takes a few microseconds."""
        return _pragma(c, "data_version")

    def describe(self, c: sa.Connection) -> dict[str, Any]:
        page, pages, free = (_pragma(c, name) for name in ("page_size", "page_count", "freelist_count"))
        wal = self.path.with_name(self.path.name + "-wal")
        return {
            "engine": f"SQLite {sqlite3.sqlite_version}",
            "bytes": page * pages + (wal.stat().st_size if wal.exists() else 0),
            "free_bytes": page * free,
        }

    def copy_to(self, c: sa.Connection, target: Path) -> bool:
        driver: Any = c.connection.driver_connection
        try:
            with closing(sqlite3.connect(target)) as copy:
                driver.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a -wal
        except sqlite3.Error as exc:
            raise ResourceError(
                f"cannot write {target}: {exc}", hint="check that the disk has enough free space"
            ) from None
        return True

    def is_busy(self, error: DBAPIError) -> bool:
        code: Any = getattr(error.orig, "sqlite_errorcode", None)
        return isinstance(code, int) and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

    def explain(self, error: DBAPIError) -> ResourceError | None:
        code: Any = getattr(error.orig, "sqlite_errorcode", None)
        if not isinstance(code, int) or code & 0xFF not in _ERRORS:
            return None
        what, hint = _ERRORS[code & 0xFF]
        return ResourceError(f"{self.path}: {what}", hint=hint)


def _pragma(c: sa.Connection, name: str) -> int:
    return int(c.exec_driver_sql(f"PRAGMA {name}").scalar_one())


_LOCKED: Final = (
    "another process keeps the store locked",
    "find the other process that uses this --home, then try again",
)
_READ_ONLY: Final = ("the store cannot be written", "check the permissions of the file and its folder")
_ERRORS: Final[dict[int, tuple[str, str]]] = {
    sqlite3.SQLITE_FULL: ("the disk is full", "free some space and try again: nothing is lost"),
    sqlite3.SQLITE_IOERR: ("the disk reports a read or write error", "check the disk"),
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_CORRUPT: (
        "the store is damaged",
        "move it away to start with an empty one, or restore a backup: sark-node db restore FILE",
    ),
    sqlite3.SQLITE_NOTADB: (
        "this file is not a store of sark-node",
        "move it away to start with an empty one",
    ),
    sqlite3.SQLITE_CANTOPEN: ("the store cannot be opened", "check that the folder exists and is writable"),
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _READ_ONLY,
}
