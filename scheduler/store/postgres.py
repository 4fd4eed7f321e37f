"""A store on a PostgreSQL server: one schema for each scheduler, one writer at a time as on SQLite.

    begin     an advisory lock that the transaction holds: who reads is never kept waiting, who writes waits for one other at most
    commit    the last statement counts the change, so that others see by one row whether they must look; the lock is held already
    claim     an advisory lock that the session holds: two machines with one key do not run the same campaigns

A pooler that gives each transaction another session (pgbouncer's transaction mode) breaks both the claim and the schema's search path.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, InternalError, OperationalError

from protocol.errors import ResourceError
from scheduler.store.backend import BUSY_MS, LOOKS_LIKE, Backend, ServerPlace

CONNECT_S: Final = 10
"""How long to wait for the server when a connection is made."""
_ALIVE: Final = {
    "connect_timeout": CONNECT_S,
    "keepalives_idle": 20,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
    "application_name": "sark-node",
}
"""For libpq: a server that falls silent is noticed within half a minute."""


class PostgreSQL(Backend):
    """One connection with the schema of one scheduler as its search path."""

    makes_medians = True

    def __init__(self, place: ServerPlace) -> None:
        self.place = self._server = place
        self._own = 0
        """Changes that were counted by this connection: they are taken off the count."""
        self._claimed = False
        self.busy_ms, self.claim_ms = BUSY_MS, BUSY_MS

    def connect(self) -> sa.Connection:
        url = self._server.url
        given = {name: value for name, value in _ALIVE.items() if name not in url.query}
        with self.told():
            try:
                engine = sa.create_engine(
                    url.set(drivername="postgresql+psycopg"),
                    isolation_level="AUTOCOMMIT",  # transactions are begun and ended in one place: Writing._writing
                    poolclass=sa.NullPool,
                    connect_args=given,
                    hide_parameters=True,
                )
            except ModuleNotFoundError:
                raise ResourceError(
                    f"{self.place}: the driver for PostgreSQL is not installed",
                    hint="install it: pip install 'sark-node[postgres]'",
                ) from None
            except ArgumentError:  # what it says repeats the URL
                raise ResourceError(f"{self.place}: this address cannot be used", hint=LOOKS_LIKE) from None
            connection = engine.connect()
            try:
                connection.exec_driver_sql(f'SET search_path TO "{self._server.schema}"')
                connection.exec_driver_sql("SET synchronous_commit = on")  # whatever the server's own default
                connection.exec_driver_sql("SET idle_in_transaction_session_timeout = 0")
                if self._claimed:
                    self.claim(connection)
            except BaseException:
                connection.close()
                raise
            return connection

    def begin(self, c: sa.Connection) -> None:
        self._at_once(
            c,
            f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = {self.busy_ms};"
            f" SELECT pg_advisory_xact_lock({self._key('write')})",
        )

    def commit(self, c: sa.Connection) -> None:
        self._at_once(c, "UPDATE store_state SET changes = changes + 1; COMMIT")
        self._own += 1

    @staticmethod
    def _at_once(c: sa.Connection, statements: str) -> None:
        """Several statements in one message: the server is asked once for all of them."""
        c.exec_driver_sql(statements, execution_options={"no_parameters": True})

    def roll_back(self, c: sa.Connection) -> None:
        if c.closed or c.invalidated:
            return
        driver: Any = c.connection.driver_connection
        if not driver.closed and driver.info.transaction_status != 0:  # 0: idle, nothing is open
            c.exec_driver_sql("ROLLBACK")

    def begin_reading(self, c: sa.Connection) -> None:
        c.exec_driver_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def make_room(self, c: sa.Connection) -> None:
        schema = self._server.schema
        if c.execute(sa.text("SELECT to_regnamespace(quote_ident(:s))"), {"s": schema}).scalar() is None:
            c.exec_driver_sql(f'CREATE SCHEMA "{schema}"')
        if not self._has_state(c):
            c.exec_driver_sql("CREATE TABLE store_state (version BIGINT NOT NULL, changes BIGINT NOT NULL)")
            c.exec_driver_sql("INSERT INTO store_state VALUES (0, 0)")

    def _has_state(self, c: sa.Connection) -> bool:
        return c.exec_driver_sql("SELECT to_regclass('store_state')").scalar() is not None

    def version(self, c: sa.Connection) -> int:
        if not self._has_state(c):
            return 0
        return int(c.exec_driver_sql("SELECT version FROM store_state").scalar_one())

    def set_version(self, c: sa.Connection, version: int) -> None:
        c.execute(sa.text("UPDATE store_state SET version = :version"), {"version": version})

    def changes(self, c: sa.Connection) -> int:
        """One short question to the server."""
        return int(c.exec_driver_sql("SELECT changes FROM store_state").scalar_one()) - self._own

    def claim(self, c: sa.Connection) -> None:
        try:  # a moment: the server may not have seen yet that the process before us has ended
            self._at_once(
                c,
                f"BEGIN; SET LOCAL lock_timeout = {self.claim_ms};"
                f" SELECT pg_advisory_lock({self._key('run')}); COMMIT",
            )
        except DBAPIError as exc:
            self.roll_back(c)
            if getattr(exc.orig, "sqlstate", None) != "55P03":
                raise
            raise ResourceError(
                f"{self.place}: another machine with the same scheduler.key runs the campaigns of this store",
                hint="let that one run them, or stop it first",
            ) from None
        self._claimed = True

    def about(self, c: sa.Connection) -> dict[str, Any]:
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

    def say(self, error: DBAPIError) -> ResourceError | None:
        state = getattr(error.orig, "sqlstate", None)
        words = _first_line(str(error.orig), self._server.url.password)
        what, hint = _what(state, words) or ("", "")
        if not what and isinstance(error, (OperationalError, InternalError)):
            what, hint = f"the server says: {words}", _LOOK
        return ResourceError(f"{self.place}: {what}", hint=hint) if what else None

    def _key(self, what: str) -> int:
        """Advisory locks are named by a number of 64 bits, in one heap for the whole database."""
        digest = hashlib.sha256(f"sark-node {what} {self._server.schema}".encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)


def _first_line(text: str, password: object) -> str:
    """What the server or libpq said, without the password should it ever be quoted."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "nothing")
    line = re.sub(r"^.* failed: (?:FATAL|ERROR):\s*", "", line)
    return line.replace(str(password), "…") if password else line


_LOOK: Final = "look at the server's log; nothing that was stored is lost"
_AGAIN: Final = "is it running, and is the address right? What was stored is safe: run it again then"
_PASSWORD: Final = (
    "the server does not let us in: user or password is wrong",
    "say them in the URL of `store`, or in PGPASSWORD or ~/.pgpass",
)
_FULL: Final = ("the server's disk is full", "free some space there and run it again: nothing is lost")
_DATABASE: Final = ("there is no such database", "make it on the server: createdb NAME")
_BY_STATE: Final[dict[str, tuple[str, str]]] = {
    "53100": _FULL,
    "53200": ("the server has no memory left", _LOOK),
    "53300": ("the server has no connection left", "raise its max_connections, or end what else uses it"),
    "55P03": ("another process keeps the store locked", "see what else uses this store; then run it again"),
    "40P01": ("another process keeps the store locked", "see what else uses this store; then run it again"),
    "42501": (
        "the user may not make tables there",
        "on the server: GRANT CREATE ON DATABASE … TO …; the schema that it makes is its own",
    ),
    "25006": ("the server only lets us read: it is a standby", "name the primary server"),
    "3D000": _DATABASE,
    "28P01": _PASSWORD,
    "28000": _PASSWORD,
    "42P01": ("the store's tables are gone", "restore a copy: sark-node db restore FILE"),
    "3F000": ("the store's schema is gone", "restore a copy: sark-node db restore FILE"),
    "XX001": ("the store is damaged", "restore a copy: sark-node db restore FILE"),
    "XX002": ("the store is damaged", "restore a copy: sark-node db restore FILE"),
}
_GONE: Final = ("the server does not answer", _AGAIN)
_BY_WORDS: Final[tuple[tuple[str, tuple[str, str]], ...]] = (
    ("password", _PASSWORD),
    ("no pg_hba.conf entry", _PASSWORD),
    ("authentication failed", _PASSWORD),
    ('role "', _PASSWORD),
    ('database "', _DATABASE),
    ("no space left", _FULL),
)
"""A connection that could not be made has no state; its text may also be in the server's own language."""
_LOST: Final = (
    "connection",
    "connect",
    "timeout",
    "could not translate",
    "resolve",
    "name or service",
    "terminat",
    "shutting down",
    "starting up",
)


def _what(state: str | None, words: str) -> tuple[str, str] | None:
    if state in _BY_STATE:
        return _BY_STATE[state]
    if state is not None:
        return _GONE if state[:2] in ("08", "57") else None
    lower = words.lower()
    for part, told in _BY_WORDS:
        if part in lower:
            return told
    return _GONE if any(part in lower for part in _LOST) else None
