"""How a store of any earlier form becomes one of the newest: numbered steps, only ever appended to.

Each is frozen as it was released: it says in SQL what the tables were then. `scheduler.store.schema` is how they are now. The SQL is
SQLite's; for PostgreSQL the names of the types are put in its words, and text is ordered by its bytes as SQLite does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import sqlalchemy as sa

from scheduler.store.event_chain import chained

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
        connection.execute(
            sa.text("UPDATE events SET hash = :hash WHERE campaign = :campaign AND seq = :seq"),
            {"hash": before[row.campaign], "campaign": row.campaign, "seq": row.seq},
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


RESULTS: Final = """CREATE TABLE results (
    task TEXT NOT NULL, campaign TEXT NOT NULL, n INTEGER NOT NULL, ended FLOAT NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL,
    model TEXT NOT NULL, sha256 TEXT NOT NULL, unit TEXT NOT NULL, device TEXT NOT NULL DEFAULT '', device_id TEXT NOT NULL DEFAULT '',
    soc TEXT NOT NULL DEFAULT '', system TEXT NOT NULL DEFAULT '', runtime TEXT NOT NULL DEFAULT '', threads INTEGER,
    verdict TEXT NOT NULL DEFAULT '', fingerprint TEXT NOT NULL DEFAULT '', replica INTEGER,
    inference_ms_median FLOAT, inference_ms_median_low FLOAT, inference_ms_median_high FLOAT, inference_ms_average FLOAT,
    inference_ms_std_dev FLOAT, inference_ms_p90 FLOAT, inference_ms_p99 FLOAT, load_ms_median FLOAT, peak_inference_ram_usage FLOAT,
    peak_load_ram_usage FLOAT, energy_per_inference_j FLOAT, power_w FLOAT, ttft_ms_median FLOAT, tokens_per_second FLOAT, max_error FLOAT,
    PRIMARY KEY (task), FOREIGN KEY(task) REFERENCES tasks (id), FOREIGN KEY(campaign) REFERENCES campaigns (id)
);
CREATE INDEX ix_results_ended ON results (ended, task);
CREATE INDEX ix_results_campaign ON results (campaign, ended, task);
CREATE INDEX ix_results_model ON results (model, ended, task);
CREATE INDEX ix_tasks_state ON tasks (campaign, state);
INSERT INTO results (task, campaign, n, ended, state, reason, model, sha256, unit, device, replica)
    SELECT id, campaign, n, ended, state, coalesce(reason, ''), model, sha256, unit, device, replica FROM tasks WHERE ended IS NOT NULL
"""
_OF_RECORDS: Final = frozenset(
    {
        *("device", "device_id", "soc", "system", "runtime", "threads", "verdict", "fingerprint"),
        *("inference_ms_median", "inference_ms_median_low", "inference_ms_median_high"),
        *("inference_ms_average", "inference_ms_std_dev", "inference_ms_p90", "inference_ms_p99"),
        *("load_ms_median", "peak_inference_ram_usage", "peak_load_ram_usage", "energy_per_inference_j"),
        *("power_w", "ttft_ms_median", "tokens_per_second", "max_error"),
    }
)
"""What is read out of records; a later version may know more columns, which a later step makes."""


def _results(connection: sa.Connection) -> None:
    """What lists and pivots read, for tasks that have ended before: a millisecond or two for each record, once."""
    from results.export.columns import figures_of_bodies, without_figures

    _all(connection, RESULTS)
    last = ""
    columns = ", ".join(f"{name} = coalesce(:{name}, {name})" for name in sorted(_OF_RECORDS))
    fill = sa.text(f"UPDATE results SET {columns} WHERE task = :of")  # noqa: S608  (names of the list above)
    page = sa.text(
        "SELECT t.id, t.state, t.body, r.body AS record FROM tasks t JOIN records r ON r.task = t.id AND r.decides"
        " WHERE t.ended IS NOT NULL AND t.id > :last ORDER BY t.id LIMIT 200"
    )
    while rows := connection.execute(page, {"last": last}).all():
        last, told = rows[-1].id, []
        for row in rows:
            found = figures_of_bodies(bytes(row.body), bytes(row.record))
            if row.state != "succeeded":
                found = without_figures(found)
            if found:
                told.append({name: found.get(name) for name in _OF_RECORDS} | {"of": row.id})
        if told:
            connection.execute(fill, told)


def _all(connection: sa.Connection, script: str) -> None:
    """Each statement by itself, in the transaction that is open (`executescript` would end it)."""
    for statement in script.split(";"):
        if statement.strip():
            connection.exec_driver_sql(in_words_of(connection.dialect.name, statement))


_POSTGRESQL: Final[dict[str, str]] = {
    "TEXT": 'TEXT COLLATE "C"',
    "INTEGER": "BIGINT",
    "FLOAT": "DOUBLE PRECISION",
    "BLOB": "BYTEA",
    "decides = 1": "decides",
}


def in_words_of(dialect: str, statement: str) -> str:
    """`statement`, written for SQLite, for that dialect."""
    if dialect != "postgresql":
        return statement
    return re.sub(rf"\b({'|'.join(_POSTGRESQL)})\b", lambda found: _POSTGRESQL[found[1]], statement)


def _simulated(connection: sa.Connection) -> None:
    """What was kept of simulations before they had a verdict of their own."""
    connection.execute(
        sa.text("UPDATE results SET verdict = 'simulated' WHERE unit = 'Fake (Simulation)' AND verdict <> ''")
    )


MIGRATIONS: Final[tuple[Migration, ...]] = (_first, _second, _experiments, _results, _simulated)
"""A store knows how many of them it has been through."""
