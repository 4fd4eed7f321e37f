"""The tables of the scheduler's store as they are now, and how SQLite is opened and its errors told. A change here is a migration too.

`PRAGMA user_version` is the number of migrations a file has been through; a higher one than we know means a newer sark-node wrote it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from protocol.errors import ResourceError
from scheduler.migrations import MIGRATIONS, Migration

BUSY_MS: Final = 5000
"""How long one process waits for another that is writing."""

metadata = sa.MetaData()

campaigns = sa.Table(
    "campaigns",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("scheduler", sa.Text, nullable=False),
    sa.Column("spec", sa.Text, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("backoff_s", sa.Float, nullable=False),
    sa.Column("wait_s", sa.Float, nullable=False),
    sa.Column("limit_s", sa.Float),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False, default=0),
    sa.Column("planned", sa.Boolean, nullable=False),
    sa.Column("cancel", sa.Boolean, nullable=False, default=False),
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("ended", sa.Float),
    sa.Column("outcome", sa.Text),
    sa.Column("detail", sa.Text, nullable=False, default=""),
    sa.Column("next_seq", sa.Integer, nullable=False, default=1),
)

models = sa.Table(
    "models",
    metadata,
    sa.Column("campaign", sa.ForeignKey("campaigns.id"), primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("sha256", sa.Text, nullable=False, index=True),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("facts", sa.Text, nullable=False, default=""),
)

tasks = sa.Table(
    "tasks",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("campaign", sa.ForeignKey("campaigns.id"), nullable=False),
    sa.Column("n", sa.Integer, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("unit", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False, default=0),
    sa.Column("tries", sa.Integer, nullable=False, default=0),
    sa.Column("worker", sa.Text),
    sa.Column("device", sa.Text, nullable=False, default=""),
    sa.Column("lease", sa.Text),
    sa.Column("incarnation", sa.Integer),
    sa.Column("number", sa.Integer),
    sa.Column("reason", sa.Text),
    sa.Column("detail", sa.Text, nullable=False, default=""),
    sa.Column("cancel", sa.Boolean, nullable=False, default=False),
    sa.Column("phase", sa.Text),
    sa.Column("done", sa.Integer, nullable=False, default=0),
    sa.Column("total", sa.Integer),
    sa.Column("median_ms", sa.Float),
    sa.Column("note", sa.Text, nullable=False, default=""),
    sa.Column("begun", sa.Float),
    sa.Column("ended", sa.Float),
    sa.Column("position", sa.Integer),
    sa.Column("start_s", sa.Float),
    sa.Column("preempted", sa.Integer, nullable=False, default=0),
    sa.Column("replica", sa.Integer),
    sa.UniqueConstraint("campaign", "n"),
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("task", sa.ForeignKey("tasks.id"), primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("worker", sa.Text, nullable=False),
    sa.Column("device", sa.Text, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("lease", sa.Text),
    sa.Column("incarnation", sa.Integer),
    sa.Column("number", sa.Integer),
    sa.Column("reason", sa.Text),
    sa.Column("detail", sa.Text, nullable=False, default=""),
    sa.Column("begun", sa.Float, nullable=False),
    sa.Column("ended", sa.Float),
)

records = sa.Table(
    "records",
    metadata,
    sa.Column("task", sa.ForeignKey("tasks.id"), primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("worker", sa.Text, nullable=False),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("signature", sa.LargeBinary, nullable=False),
    sa.Column("decides", sa.Boolean, nullable=False),
    sa.Column("accepted", sa.Float, nullable=False),
    sa.Index("one_result_for_each_task", "task", unique=True, sqlite_where=sa.text("decides = 1")),
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("campaign", sa.ForeignKey("campaigns.id"), primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("task", sa.Text),
    sa.Column("fields", sa.Text, nullable=False),
    sa.Column("hash", sa.Text, nullable=False, default=""),
)

workers = sa.Table(
    "workers",
    metadata,
    sa.Column("peer", sa.Text, primary_key=True),
    sa.Column("device", sa.Text, nullable=False),
    sa.Column("addresses", sa.Text, nullable=False),
    sa.Column("seen", sa.Float, nullable=False),
)


# -- migrations: see `scheduler.migrations` ------------------------------------------------------------------------------------------


def migrate(connection: sa.Connection, path: Path, *, known: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the file to the newest form, each step in the one transaction that is open. ResourceError when it is newer than we are."""
    version = int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
    if version > len(known):
        raise ResourceError(
            f"{path} was written by a newer sark-node (store version {version}, this one knows {len(known)})",
            hint="upgrade sark-node, or use another --home",
        )
    for step in known[version:]:
        step(connection)
    if version < len(known):
        connection.exec_driver_sql(f"PRAGMA user_version = {len(known)}")


# -- opening ----------------------------------------------------------------------------------------------------------------------


def connect(path: Path) -> sa.Connection:
    """An open connection in WAL mode that has proved to flush every commit to the disk. ResourceError when it cannot be had."""
    with told(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        engine = sa.create_engine(
            f"sqlite:///{path}",
            isolation_level="AUTOCOMMIT",  # transactions are begun and ended in one place: Store.writing
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
                    f"{path}: this folder cannot hold a store (journal {mode}, synchronous {flushed})",
                    hint="use a --home on a local disk",
                )
        except BaseException:
            connection.close()
            raise
        return connection


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Turn what SQLite raises for a full, locked, corrupt or unreachable file into one clear `ResourceError`."""
    try:
        yield
    except DBAPIError as exc:
        raise _resource(path, exc) from exc
    except OSError as exc:
        raise ResourceError(
            f"cannot use {path}: {exc.strerror or exc}", hint="check the folder and its rights"
        ) from exc


_WHAT: Final[dict[int, tuple[str, str]]] = {
    sqlite3.SQLITE_FULL: ("the disk is full", "free some space and run it again: nothing is lost"),
    sqlite3.SQLITE_IOERR: ("the disk does not read or write", "check the disk"),
    sqlite3.SQLITE_BUSY: (
        "another process keeps the store locked",
        "see what else uses this --home; then run it again",
    ),
    sqlite3.SQLITE_LOCKED: (
        "another process keeps the store locked",
        "see what else uses this --home; then run it again",
    ),
    sqlite3.SQLITE_CORRUPT: ("the store is damaged", "move it away to begin anew, or restore a copy"),
    sqlite3.SQLITE_NOTADB: ("this is not a store of sark-node", "move it away to begin anew"),
    sqlite3.SQLITE_CANTOPEN: ("the store cannot be opened", "check the folder and its rights"),
    sqlite3.SQLITE_READONLY: ("the store cannot be written", "check the folder and its rights"),
    sqlite3.SQLITE_PERM: ("the store cannot be written", "check the folder and its rights"),
}


def _resource(path: Path, error: DBAPIError) -> ResourceError:
    code: Any = getattr(error.orig, "sqlite_errorcode", None)
    if not isinstance(code, int) or code & 0xFF not in _WHAT:
        raise error  # a mistake of ours, such as a broken constraint
    what, hint = _WHAT[code & 0xFF]
    return ResourceError(f"{path}: {what}", hint=hint)
