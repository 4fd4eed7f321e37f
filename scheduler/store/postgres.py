"""A store on a PostgreSQL server: one schema per scheduler, one writer at a time as on SQLite.

    begin     takes an advisory lock for the transaction: readers never wait, writers wait for each other
    commit    increments a counter in its last statement, so that other processes can poll for changes
    claim     takes an advisory lock for the session: meanwhile nobody runs campaigns, for example while a copy is restored
    join      shares that lock: several processes with one key run campaigns, each in its own seat (`scheduler.store.seats`)
    fence     each transaction first checks that the process's term in its seat has not ended

A pooler that changes the session between transactions (pgbouncer's transaction mode) breaks the claim and the schema's search path.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, InternalError, OperationalError

from protocol.errors import ResourceError, StoreUnreachable
from scheduler.store.database import BUSY_MS, LOOKS_LIKE, Backend, LeadershipLost, ServerLocation

CONNECT_S: Final = 10
"""Seconds to wait for the server when connecting."""
_ALIVE: Final = {
    "connect_timeout": CONNECT_S,
    "keepalives_idle": 20,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
    "application_name": "sark-node",
}
"""libpq options that notice a silent server within half a minute."""


FROZEN_MS: Final = 5_000
"""Milliseconds after which a scheduler process that stands still inside a transaction is disconnected, since others wait for its lock."""
_ENDED: Final = "SK001"
"""The SQL state of a transaction whose process has lost its term in its seat."""


class PostgreSQL(Backend):
    """One connection with the schema of one scheduler as its search path."""

    has_median = shared = True

    def __init__(self, location: ServerLocation) -> None:
        self.location = self._server = location
        self._seat: int | None = None
        self._fence = ""
        self._own = 0
        """Number of changes that this connection made, which `changes` leaves out."""
        self._claimed = False
        self.busy_ms, self.claim_ms = BUSY_MS, BUSY_MS

    def engine(self) -> sa.Engine:
        url = self._server.url
        try:
            return sa.create_engine(
                url.set(drivername="postgresql+psycopg"),
                isolation_level="AUTOCOMMIT",
                poolclass=sa.NullPool,
                connect_args={name: value for name, value in _ALIVE.items() if name not in url.query},
                hide_parameters=True,
            )
        except ModuleNotFoundError:
            raise ResourceError(
                f"{self.location}: the driver for PostgreSQL is not installed",
                hint="install it: pip install 'sark-node[postgres]'",
            ) from None
        except ArgumentError:  # its message repeats the URL
            raise ResourceError(f"{self.location}: this address cannot be used", hint=LOOKS_LIKE) from None

    def set_up(self, c: sa.Connection) -> None:
        c.exec_driver_sql(f'SET search_path TO "{self._server.schema}"')
        c.exec_driver_sql("SET synchronous_commit = on")  # regardless of the server's default
        c.exec_driver_sql("SET idle_in_transaction_session_timeout = 0")
        if self._claimed:
            self.claim(c)
        if self._seat is not None:
            self.join(c)
            if not self.take_seat(c, self._seat):
                raise self._lost()

    def begin(self, c: sa.Connection) -> None:
        self._at_once(
            c,
            f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = {self.busy_ms};"
            f" SELECT pg_advisory_xact_lock({self._key('write')}){self._fence}",
        )

    def commit(self, c: sa.Connection) -> None:
        self._at_once(c, "UPDATE store_version SET changes = changes + 1; COMMIT")
        self._own += 1

    @staticmethod
    def _at_once(c: sa.Connection, statements: str) -> None:
        """Run several statements in one round trip."""
        c.exec_driver_sql(statements, execution_options={"no_parameters": True})

    def roll_back(self, c: sa.Connection) -> None:
        if c.closed or c.invalidated:
            return
        driver: Any = c.connection.driver_connection
        if not driver.closed and driver.info.transaction_status != 0:  # 0: idle, nothing is open
            c.exec_driver_sql("ROLLBACK")

    def begin_snapshot(self, c: sa.Connection) -> None:
        c.exec_driver_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def prepare(self, c: sa.Connection) -> None:
        schema = self._server.schema
        if c.execute(sa.text("SELECT to_regnamespace(quote_ident(:s))"), {"s": schema}).scalar() is None:
            c.exec_driver_sql(f'CREATE SCHEMA "{schema}"')
        if not self._has_state(c):
            c.exec_driver_sql("CREATE TABLE store_version (version BIGINT NOT NULL, changes BIGINT NOT NULL)")
            c.exec_driver_sql("INSERT INTO store_version VALUES (0, 0)")

    def _has_state(self, c: sa.Connection) -> bool:
        return c.exec_driver_sql("SELECT to_regclass('store_version')").scalar() is not None

    def version(self, c: sa.Connection) -> int:
        if not self._has_state(c):
            return 0
        return int(c.exec_driver_sql("SELECT version FROM store_version").scalar_one())

    def set_version(self, c: sa.Connection, version: int) -> None:
        c.execute(sa.text("UPDATE store_version SET version = :version"), {"version": version})

    def changes(self, c: sa.Connection) -> int:
        return int(c.exec_driver_sql("SELECT changes FROM store_version").scalar_one()) - self._own

    def claim(self, c: sa.Connection) -> None:
        refusal = "another machine with the same scheduler.key runs the campaigns of this store"
        self._lock(c, "pg_advisory_lock", refusal, "stop the scheduler on that machine first")
        self._claimed = True

    def join(self, c: sa.Connection) -> None:
        refusal = "another machine with the same scheduler.key restores a copy of this store"
        self._lock(c, "pg_advisory_lock_shared", refusal, "try again when it is done")

    def _lock(self, c: sa.Connection, function: str, refusal: str, hint: str) -> None:
        try:  # wait: the server may not yet know that the previous process ended
            self._at_once(
                c,
                f"BEGIN; SET LOCAL lock_timeout = {self.claim_ms};"
                f" SELECT {function}({self._key('run')}); COMMIT",
            )
        except DBAPIError as exc:
            self.roll_back(c)
            if getattr(exc.orig, "sqlstate", None) != "55P03":
                raise
            raise ResourceError(f"{self.location}: {refusal}", hint=hint) from None

    def take_seat(self, c: sa.Connection, seat: int) -> bool:
        key = self._key(f"seat {seat}")
        if not c.exec_driver_sql(f"SELECT pg_try_advisory_lock({key})").scalar_one():
            return False
        c.exec_driver_sql(f"SET idle_in_transaction_session_timeout = {FROZEN_MS}")
        self._seat = seat
        return True

    def fence(self, seat: int, term: int) -> None:
        kept = f"SELECT FROM seats WHERE seat = {seat:d} AND term = {term:d}"
        self._fence = (
            f"; DO $$ BEGIN IF NOT EXISTS ({kept}) THEN"
            f" RAISE EXCEPTION 'the term has ended' USING ERRCODE = '{_ENDED}'; END IF; END $$"
        )

    def _lost(self) -> LeadershipLost:
        return LeadershipLost(
            f"{self.location}: another process has taken over campaigns of this one",
            hint="this process did not renew its seat in time; it restarts automatically",
        )

    def describe(self, c: sa.Connection) -> dict[str, Any]:
        size = (
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = current_schema() AND c.relkind = 'r'"
        )
        return {
            "engine": f"PostgreSQL {c.exec_driver_sql('SHOW server_version').scalar_one()}",
            "bytes": int(c.exec_driver_sql(size).scalar_one()),
            "schema": self._server.schema,
            "flushes": c.exec_driver_sql("SHOW fsync").scalar_one() == "on",
        }

    def is_busy(self, error: DBAPIError) -> bool:
        return getattr(error.orig, "sqlstate", None) == "55P03"

    def explain(self, error: DBAPIError) -> ResourceError | None:
        state = getattr(error.orig, "sqlstate", None)
        if state == _ENDED:
            return self._lost()
        message = _first_line(str(error.orig), self._server.url.password)
        what, hint = _what(state, message) or ("", "")
        if not what and isinstance(error, (OperationalError, InternalError)):
            what, hint = f"the server reports: {message}", _LOOK
        if not what:
            return None
        kind = StoreUnreachable if what == _UNREACHABLE[0] else ResourceError
        return kind(f"{self.location}: {what}", hint=hint)

    def _key(self, what: str) -> int:
        """The 64-bit number of an advisory lock. The whole database shares these numbers."""
        digest = hashlib.sha256(f"sark-node {what} {self._server.schema}".encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)


def _first_line(text: str, password: object) -> str:
    """The first line of a message from the server or libpq, without the password."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "nothing")
    line = re.sub(r"^.* failed: (?:FATAL|ERROR):\s*", "", line)
    return line.replace(str(password), "…") if password else line


_LOOK: Final = "look at the server's log; nothing that was stored is lost"
_PASSWORD: Final = (
    "the server refuses the login: user or password is wrong",
    "set them in the URL of `store`, in PGPASSWORD or in ~/.pgpass",
)
_FULL: Final = ("the server's disk is full", "free some space there and try again: nothing is lost")
_LOCKED: Final = (
    "another process keeps the store locked",
    "find the other process that uses this store, then try again",
)
_DATABASE: Final = ("the database does not exist", "create it on the server: createdb NAME")
_RESTORE: Final = "restore a backup: sark-node db restore FILE"
_BY_STATE: Final[dict[str, tuple[str, str]]] = {
    "53100": _FULL,
    "53200": ("the server is out of memory", _LOOK),
    "53300": ("the server has no free connection", "raise its max_connections, or close other connections"),
    "55P03": _LOCKED,
    "40P01": _LOCKED,
    "42501": (
        "the user may not create tables there",
        "on the server: GRANT CREATE ON DATABASE NAME TO USER; sark-node creates its own schema",
    ),
    "25006": ("the server is a read-only standby", "use the URL of the primary server"),
    "3D000": _DATABASE,
    "28P01": _PASSWORD,
    "28000": _PASSWORD,
    "42P01": ("the store's tables are gone", _RESTORE),
    "3F000": ("the store's schema is gone", _RESTORE),
    "XX001": ("the store is damaged", _RESTORE),
    "XX002": ("the store is damaged", _RESTORE),
}
_UNREACHABLE: Final = (
    "the server does not answer",
    "check that it is running and that the address is right, then try again: nothing is lost",
)
_BY_TEXT: Final[tuple[tuple[str, tuple[str, str]], ...]] = (
    ("password", _PASSWORD),
    ("no pg_hba.conf entry", _PASSWORD),
    ("authentication failed", _PASSWORD),
    ('role "', _PASSWORD),
    ('database "', _DATABASE),
    ("no space left", _FULL),
    *(
        (text, _UNREACHABLE)
        for text in (
            "connect",
            "timeout",
            "could not translate",
            "resolve",
            "name or service",
            "terminat",
            "shutting down",
            "starting up",
            "eof",
            "broken pipe",
            "no route to host",
            "unreachable",
            "reset by peer",
        )
    ),
)
"""Messages of failed connections, which have no SQL state. The server may also write in another language."""


def _what(state: str | None, message: str) -> tuple[str, str] | None:
    if state is not None:
        return _BY_STATE.get(state, _UNREACHABLE if state[:2] in ("08", "57") else None)
    lower = message.lower()
    return next((meaning for text, meaning in _BY_TEXT if text in lower), None)
