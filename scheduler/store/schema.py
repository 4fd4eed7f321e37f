"""The tables of the scheduler's store, for SQLite and PostgreSQL. Their columns are the fields of the rows in `scheduler.store.rows`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from enum import StrEnum
from types import NoneType
from typing import Any, Final, get_args, get_type_hints

import sqlalchemy as sa
from pydantic import TypeAdapter
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from results.export.pivots import FigureColumn, ResultLine
from scheduler.store import rows


def stored_text(value: str | None) -> str | None:
    """What is stored for a text."""
    return None if value is None else str(value).replace("\0", "\ufffd")


class Text(TypeDecorator[str]):
    """Text, ordered by its bytes. PostgreSQL stores no NUL, which peers may send: it is replaced in both databases."""

    impl = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """The stored form of `value`."""
        return stored_text(value)


class Word(Text):
    """A word of an enumeration."""

    cache_ok = True

    def __init__(self, words: type[StrEnum]) -> None:
        super().__init__()
        self.words = words

    def process_result_value(self, value: str | None, dialect: Dialect) -> StrEnum | None:
        """The member for a stored word. Raises `ValueError`."""
        return None if value is None else self.words(value)


class Json(Text):
    """A value of the type `form`, as JSON."""

    cache_ok = True

    def __init__(self, form: Any) -> None:
        super().__init__()
        self.form: TypeAdapter[Any] = TypeAdapter(form)

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """The stored form of `value`."""
        return super().process_bind_param(json.dumps(self.form.dump_python(value)), dialect)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """The value of stored JSON. Raises `ValueError`."""
        return self.form.validate_python(json.loads(value or "null"))


class EventFields(Json):
    """The fields of an event, as JSON. They can be read even when someone edited the store by hand."""

    cache_ok = True

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """The value of stored JSON."""
        try:
            return super().process_result_value(value, dialect)
        except ValueError:
            return {"unreadable": value}


Whole: Final[sa.types.TypeEngine[int]] = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""64 bits in both databases: sizes and fences need them."""
Real: Final[sa.types.TypeEngine[float]] = sa.Double().with_variant(sa.Float, "sqlite")
"""64 bits in both databases."""
_TYPES: Final[dict[Any, Any]] = {str: Text, int: Whole, float: Real, bool: sa.Boolean, bytes: sa.LargeBinary}

metadata = sa.MetaData()
TABLES: Final[dict[type, sa.Table]] = {}
"""Tables by the dataclass of their rows."""


def _table(
    name: str,
    row: type,
    *more: sa.schema.SchemaItem,
    keys: Sequence[str],
    leave_out: Sequence[str] = (),
    **references: str,
) -> sa.Table:
    """The table of the dataclass `row`: the columns in `more`, then one for each other field. `references`: foreign keys by field."""
    columns = [item for item in more if isinstance(item, sa.Column)]
    done = {*leave_out, *(column.name for column in columns)}
    hints = get_type_hints(row)
    for field in dataclasses.fields(row):
        if field.name in done:
            continue
        reference = [sa.ForeignKey(references[field.name])] if field.name in references else []
        columns.append(
            sa.Column(
                field.name,
                _type(hints[field.name]),
                *reference,
                primary_key=field.name in keys,
                nullable=NoneType in get_args(hints[field.name]),
                default=None if field.default is dataclasses.MISSING else field.default,
            )
        )
    table = sa.Table(name, metadata, *columns, *(item for item in more if not isinstance(item, sa.Column)))
    TABLES[row] = table
    return table


def _type(hint: Any) -> Any:
    """The column type of a field."""
    if NoneType in get_args(hint):
        hint = get_args(hint)[0]
    if hint in _TYPES:
        return _TYPES[hint]
    return Word(hint) if isinstance(hint, type) and issubclass(hint, StrEnum) else Json(hint)


campaigns = _table(
    "campaigns", rows.CampaignRow, sa.Column("next_seq", Whole, nullable=False, default=1), keys=("id",)
)

models = _table(
    "models",
    rows.NewModel,
    sa.Column("campaign", sa.ForeignKey("campaigns.id"), primary_key=True),
    sa.Index("ix_models_sha256", "sha256"),
    keys=("name",),
)

tasks = _table(
    "tasks",
    rows.TaskRow,
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.UniqueConstraint("campaign", "n"),
    sa.Index("ix_tasks_standing", "campaign", "state", "ended", "n"),
    keys=("id",),
    campaign="campaigns.id",
)

attempts = _table("attempts", rows.AttemptRow, keys=("task", "attempt"), task="tasks.id")

records = sa.Table(
    "records",
    metadata,
    sa.Column("task", sa.ForeignKey("tasks.id"), primary_key=True),
    sa.Column("attempt", Whole, primary_key=True),
    sa.Column("worker", Text, nullable=False),
    sa.Column("sha256", Text, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("signature", sa.LargeBinary, nullable=False),
    sa.Column("decides", sa.Boolean, nullable=False),
    sa.Column("accepted", Real, nullable=False),
    sa.Column("account", Text),
    sa.Column("device_key", Text, nullable=False, default=""),
    sa.Column("scores", Text),
    sa.Index("one_result_for_each_task", "task", unique=True, sqlite_where=sa.text("decides = 1")),
)

results = _table(
    "results",
    ResultLine,
    *(sa.Column(str(figure), Real) for figure in FigureColumn),
    sa.Index("ix_results_ended", "ended", "task"),
    sa.Index("ix_results_campaign", "campaign", "ended", "task"),
    sa.Index("ix_results_model", "model", "ended", "task"),
    keys=("task",),
    leave_out=("campaign_name", "figures"),
    task="tasks.id",
    campaign="campaigns.id",
)
"""One row for each ended task, derived from the other tables, for lists and pivots."""

events = _table(
    "events",
    rows.EventRow,
    sa.Column("fields", EventFields(dict[str, Any]), nullable=False),
    sa.Index("ix_events_of_no_task", "campaign", "seq", sqlite_where=sa.text("task IS NULL")),
    keys=("campaign", "seq"),
    campaign="campaigns.id",
)
workers = _table("workers", rows.WorkerRow, keys=("peer",))
experiments = _table("experiments", rows.ExperimentRow, keys=("name",))
versions = _table(
    "experiment_versions", rows.VersionRow, keys=("experiment", "version"), experiment="experiments.name"
)
runs = _table(
    "experiment_runs",
    rows.RunRow,
    sa.Index("ix_experiment_runs_experiment", "experiment"),
    keys=("campaign",),
    experiment="experiments.name",
)
"""Runs outlive their campaigns, which may be deleted when they are old: a run contains its own history."""

forgets = _table("forgets", rows.ForgetRow, keys=("campaign", "worker"))
"""Deleted campaigns that workers still have to forget."""

sendings = _table("sendings", rows.SendingRow, keys=("campaign",), campaign="campaigns.id")

_shared = sa.MetaData()
seats = sa.Table(
    "seats",
    _shared,
    sa.Column("seat", Whole, primary_key=True),
    sa.Column("term", Whole, nullable=False),
    sa.Column("place", Text, nullable=False),
    sa.Column("peer", Text, nullable=False),
    sa.Column("until", Real, nullable=False),
)
"""Scheduler processes that share a store on a server; see `scheduler.store.seats`. `until`: seconds since 1970, by the server's clock."""
led = sa.Table(
    "led", _shared, sa.Column("campaign", Text, primary_key=True), sa.Column("seat", Whole, nullable=False)
)
"""Which seat leads which campaign. Left out of copies of the store."""

Migration = Callable[[sa.Connection], None]


def baseline(c: sa.Connection) -> None:
    """Version 1: all tables, in the open transaction."""
    _limit_indexes(c)
    metadata.create_all(c, checkfirst=False)


def add_remarks(c: sa.Connection) -> None:
    """Version 2: a result's remarks."""
    _add_column(c, results.c.remarks, "NOT NULL DEFAULT ''")


def add_forgets(c: sa.Connection) -> None:
    """Version 3: what workers have still to forget."""
    forgets.create(c, checkfirst=True)


def add_scores(c: sa.Connection) -> None:
    """Version 4: how answers to a model's examples are scored, and their scores."""
    _add_column(c, models.c.evaluation, "NOT NULL DEFAULT ''")
    _add_column(c, records.c.scores)


def add_sendings(c: sa.Connection) -> None:
    """Version 5: the URLs to which results are also written."""
    sendings.create(c, checkfirst=True)


def add_seats(c: sa.Connection) -> None:
    """Version 6: schedulers that share a store on a server."""
    if c.dialect.name == "postgresql":
        _shared.create_all(c)


def add_standing(c: sa.Connection) -> None:
    """Version 7: indexes for the standing of many tasks, and for events without a task."""
    _limit_indexes(c)
    c.exec_driver_sql("DROP INDEX IF EXISTS ix_tasks_state")
    for table in (tasks, events):
        for index in table.indexes:
            index.create(c, checkfirst=True)


def _limit_indexes(c: sa.Connection) -> None:
    """Make the partial indexes partial on PostgreSQL too. Declared with the tables, that would import its dialect for every command."""
    if c.dialect.name == "postgresql":
        for table, where in ((records, "decides"), (events, "task IS NULL")):
            for index in table.indexes:
                index.dialect_options["postgresql"]["where"] = sa.text(where)


def _add_column(c: sa.Connection, column: sa.Column[Any], rule: str = "") -> None:
    """Add a column unless its table has it."""
    table = column.table.name
    if column.name not in [known["name"] for known in sa.inspect(c).get_columns(table)]:
        kind = column.type.compile(c.dialect)
        c.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {column.name} {kind} {rule}")


MIGRATIONS: Final[tuple[Migration, ...]] = (
    baseline,
    add_remarks,
    add_forgets,
    add_scores,
    add_sendings,
    add_seats,
    add_standing,
)
"""Numbered steps; only ever append to them. A store knows how many it has applied. The baseline makes today's tables, so each later step
skips what already exists.
"""
