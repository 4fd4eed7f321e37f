"""A store in a file: SQLite in WAL mode. `PRAGMA user_version` is the number of migrations it has been through."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from protocol.errors import ResourceError
from scheduler.store.backend import BUSY_MS, Backend


class SQLite(Backend):
    """A file on a local disk. Which process schedules is settled by the lock of the home's folder."""

    def __init__(self, path: Path) -> None:
        self.place = self.path = path

    def connect(self) -> sa.Connection:
        with self.told():
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            engine = sa.create_engine(
                f"sqlite:///{self.path}",
                isolation_level="AUTOCOMMIT",  # transactions are begun and ended in one place: Writing._writing
                poolclass=sa.NullPool,
                connect_args={"timeout": BUSY_MS / 1000, "check_same_thread": False},
            )
            connection = engine.connect()
            try:
                connection.exec_driver_sql(f"PRAGMA busy_timeout = {BUSY_MS}")
                mode = connection.exec_driver_sql("PRAGMA journal_mode = WAL").scalar_one()
                connection.exec_driver_sql("PRAGMA synchronous = FULL")
                connection.exec_driver_sql("PRAGMA foreign_keys = ON")
                flushed = connection.exec_driver_sql("PRAGMA synchronous").scalar_one()
                if mode != "wal" or flushed != 2:
                    raise ResourceError(
                        f"{self.path}: this folder cannot hold a store (journal {mode}, synchronous {flushed})",
                        hint="use a --home on a local disk",
                    )
            except BaseException:
                connection.close()
                raise
            return connection

    def begin(self, c: sa.Connection) -> None:
        c.exec_driver_sql("BEGIN IMMEDIATE")

    def commit(self, c: sa.Connection) -> None:
        c.exec_driver_sql("COMMIT")

    def roll_back(self, c: sa.Connection) -> None:
        driver: Any = c.connection.driver_connection
        if driver.in_transaction:  # SQLite may have undone it by itself, as it does on a full disk
            c.exec_driver_sql("ROLLBACK")

    def begin_reading(self, c: sa.Connection) -> None:
        c.exec_driver_sql("BEGIN")

    def make_room(self, c: sa.Connection) -> None:
        return None

    def version(self, c: sa.Connection) -> int:
        return int(c.exec_driver_sql("PRAGMA user_version").scalar_one())

    def set_version(self, c: sa.Connection, version: int) -> None:
        c.exec_driver_sql(f"PRAGMA user_version = {version}")

    def changes(self, c: sa.Connection) -> int:
        """A few microseconds."""
        return int(c.exec_driver_sql("PRAGMA data_version").scalar_one())

    def claim(self, c: sa.Connection) -> None:
        return None

    def about(self, c: sa.Connection) -> dict[str, Any]:
        page, pages, free = (
            int(c.exec_driver_sql(f"PRAGMA {name}").scalar_one())
            for name in ("page_size", "page_count", "freelist_count")
        )
        wal = self.path.with_name(self.path.name + "-wal")
        return {
            "engine": f"SQLite {sqlite3.sqlite_version}",
            "bytes": page * pages + (wal.stat().st_size if wal.exists() else 0),
            "free_bytes": page * free,
        }

    def copy_file(self, c: sa.Connection, target: Path) -> bool:
        driver: Any = c.connection.driver_connection
        try:
            with closing(sqlite3.connect(target)) as copy:
                driver.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a second one beside it
        except sqlite3.Error as exc:
            raise ResourceError(f"cannot write {target}: {exc}", hint="is there room?") from None
        return True

    def say(self, error: DBAPIError) -> ResourceError | None:
        code: Any = getattr(error.orig, "sqlite_errorcode", None)
        if not isinstance(code, int) or code & 0xFF not in _WHAT:
            return None
        what, hint = _WHAT[code & 0xFF]
        return ResourceError(f"{self.path}: {what}", hint=hint)


_LOCKED: Final = (
    "another process keeps the store locked",
    "see what else uses this --home; then run it again",
)
_RIGHTS: Final = ("the store cannot be written", "check the folder and its rights")
_WHAT: Final[dict[int, tuple[str, str]]] = {
    sqlite3.SQLITE_FULL: ("the disk is full", "free some space and run it again: nothing is lost"),
    sqlite3.SQLITE_IOERR: ("the disk does not read or write", "check the disk"),
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_CORRUPT: ("the store is damaged", "move it away to begin anew, or restore a copy"),
    sqlite3.SQLITE_NOTADB: ("this is not a store of sark-node", "move it away to begin anew"),
    sqlite3.SQLITE_CANTOPEN: ("the store cannot be opened", "check the folder and its rights"),
    sqlite3.SQLITE_READONLY: _RIGHTS,
    sqlite3.SQLITE_PERM: _RIGHTS,
}
