"""How a store of any earlier form becomes one of the newest: numbered steps, only ever appended to.

Each is frozen as it was released: it says in SQL what the tables were then. `scheduler.tables` is how they are now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import sqlalchemy as sa

from scheduler.chain import chained

Migration = Callable[[sa.Connection], None]

FIRST: Final = """CREATE TABLE campaigns (
    id TEXT NOT NULL, name TEXT NOT NULL, scheduler TEXT NOT NULL, spec TEXT NOT NULL, attempts INTEGER NOT NULL,
    backoff_s FLOAT NOT NULL, wait_s FLOAT NOT NULL, limit_s FLOAT, priority INTEGER NOT NULL, epoch INTEGER NOT NULL,
    planned BOOLEAN NOT NULL, cancel BOOLEAN NOT NULL, created FLOAT NOT NULL, ended FLOAT, outcome TEXT, detail TEXT NOT NULL,
    next_seq INTEGER NOT NULL, PRIMARY KEY (id)
);
CREATE TABLE workers (
    peer TEXT NOT NULL, device TEXT NOT NULL, addresses TEXT NOT NULL, seen FLOAT NOT NULL, PRIMARY KEY (peer)
);
CREATE TABLE models (
    campaign TEXT NOT NULL, name TEXT NOT NULL, sha256 TEXT NOT NULL, size INTEGER NOT NULL, facts TEXT NOT NULL,
    PRIMARY KEY (campaign, name), FOREIGN KEY(campaign) REFERENCES campaigns (id)
);
CREATE INDEX ix_models_sha256 ON models (sha256);
CREATE TABLE tasks (
    id TEXT NOT NULL, campaign TEXT NOT NULL, n INTEGER NOT NULL, body BLOB NOT NULL, model TEXT NOT NULL, sha256 TEXT NOT NULL,
    unit TEXT NOT NULL, state TEXT NOT NULL, attempt INTEGER NOT NULL, tries INTEGER NOT NULL, worker TEXT, device TEXT NOT NULL,
    lease TEXT, incarnation INTEGER, number INTEGER, reason TEXT, detail TEXT NOT NULL, cancel BOOLEAN NOT NULL, phase TEXT,
    done INTEGER NOT NULL, total INTEGER, median_ms FLOAT, note TEXT NOT NULL, begun FLOAT, ended FLOAT,
    PRIMARY KEY (id), UNIQUE (campaign, n), FOREIGN KEY(campaign) REFERENCES campaigns (id)
);
CREATE TABLE events (
    campaign TEXT NOT NULL, seq INTEGER NOT NULL, at FLOAT NOT NULL, name TEXT NOT NULL, task TEXT, fields TEXT NOT NULL,
    PRIMARY KEY (campaign, seq), FOREIGN KEY(campaign) REFERENCES campaigns (id)
);
CREATE TABLE attempts (
    task TEXT NOT NULL, attempt INTEGER NOT NULL, "key" TEXT NOT NULL, worker TEXT NOT NULL, device TEXT NOT NULL,
    epoch INTEGER NOT NULL, state TEXT NOT NULL, lease TEXT, incarnation INTEGER, number INTEGER, reason TEXT,
    detail TEXT NOT NULL, begun FLOAT NOT NULL, ended FLOAT,
    PRIMARY KEY (task, attempt), FOREIGN KEY(task) REFERENCES tasks (id)
);
CREATE TABLE records (
    task TEXT NOT NULL, attempt INTEGER NOT NULL, worker TEXT NOT NULL, sha256 TEXT NOT NULL, body BLOB NOT NULL,
    signature BLOB NOT NULL, decides BOOLEAN NOT NULL, accepted FLOAT NOT NULL,
    PRIMARY KEY (task, attempt), FOREIGN KEY(task) REFERENCES tasks (id)
);
CREATE UNIQUE INDEX one_result_for_each_task ON records (task) WHERE decides = 1;
"""


def _first(connection: sa.Connection) -> None:
    """The tables of the first release."""
    _all(connection, FIRST)


def _second(connection: sa.Connection) -> None:
    """Where a task waits, how often it gave way, which replica it is; events in a chain, those from before as they are found."""
    _all(
        connection,
        """
        ALTER TABLE tasks ADD COLUMN position INTEGER;
        ALTER TABLE tasks ADD COLUMN start_s FLOAT;
        ALTER TABLE tasks ADD COLUMN preempted INTEGER NOT NULL DEFAULT 0;
        ALTER TABLE tasks ADD COLUMN replica INTEGER;
        ALTER TABLE events ADD COLUMN hash TEXT NOT NULL DEFAULT '';
        """,
    )
    before = {"": ""}
    rows = connection.exec_driver_sql(
        "SELECT campaign, seq, at, name, task, fields FROM events ORDER BY campaign, seq"
    ).all()
    for row in rows:
        before[row.campaign] = chained(
            before.get(row.campaign, ""), row.campaign, row.seq, row.at, row.name, row.task, row.fields
        )
        connection.exec_driver_sql(
            "UPDATE events SET hash = ? WHERE campaign = ? AND seq = ?",
            (before[row.campaign], row.campaign, row.seq),
        )


def _experiments(connection: sa.Connection) -> None:
    """Experiments, their versions and runs, and the folder that a campaign's file lay in."""
    _all(
        connection,
        """
        CREATE TABLE experiments (
            name TEXT NOT NULL, created FLOAT NOT NULL, every_s FLOAT, at_s FLOAT, alarm FLOAT NOT NULL, webhook TEXT NOT NULL,
            secret_file TEXT NOT NULL, due FLOAT, PRIMARY KEY (name)
        );
        CREATE TABLE experiment_versions (
            experiment TEXT NOT NULL, version INTEGER NOT NULL, digest TEXT NOT NULL, spec TEXT NOT NULL, models TEXT NOT NULL,
            folder TEXT NOT NULL, created FLOAT NOT NULL,
            PRIMARY KEY (experiment, version), FOREIGN KEY(experiment) REFERENCES experiments (name)
        );
        CREATE TABLE experiment_runs (
            campaign TEXT NOT NULL, experiment TEXT NOT NULL, version INTEGER NOT NULL, scheduled BOOLEAN NOT NULL,
            begun FLOAT NOT NULL, judged FLOAT, finding TEXT NOT NULL, cells TEXT NOT NULL, accepted BOOLEAN NOT NULL,
            hook TEXT NOT NULL, hook_at FLOAT,
            PRIMARY KEY (campaign), FOREIGN KEY(experiment) REFERENCES experiments (name)
        );
        CREATE INDEX ix_experiment_runs_experiment ON experiment_runs (experiment);
        CREATE TABLE campaign_folders (campaign TEXT NOT NULL, folder TEXT NOT NULL, PRIMARY KEY (campaign));
        """,
    )


def _all(connection: sa.Connection, script: str) -> None:
    """Each statement by itself, in the transaction that is open (`executescript` would end it)."""
    for statement in script.split(";"):
        if statement.strip():
            connection.exec_driver_sql(statement)


MIGRATIONS: Final[tuple[Migration, ...]] = (_first, _second, _experiments)
"""`PRAGMA user_version` of a file is how many of them it has been through."""
