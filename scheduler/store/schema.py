"""The tables of the scheduler's store, for SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from results.export.columns import FigureColumn


class Text(TypeDecorator[str]):
    """Text, ordered by its bytes. PostgreSQL stores no NUL, which peers may send: it is replaced on both."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        """The column type of `dialect`."""
        collation = "C" if dialect.name == "postgresql" else None
        return dialect.type_descriptor(sa.Text(collation=collation))

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """The stored form of `value`."""
        return value.replace("\0", "\ufffd") if value is not None and "\0" in value else value


Whole: Final[sa.types.TypeEngine[int]] = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""64 bits on both: sizes and fences need them."""
Real: Final[sa.types.TypeEngine[float]] = sa.Double().with_variant(sa.Float, "sqlite")
"""64 bits on both."""

metadata = sa.MetaData()

campaigns = sa.Table(
    "campaigns",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("name", Text, nullable=False),
    sa.Column("scheduler", Text, nullable=False),
    sa.Column("spec", Text, nullable=False),
    sa.Column("attempts", Whole, nullable=False),
    sa.Column("backoff_s", Real, nullable=False),
    sa.Column("wait_s", Real, nullable=False),
    sa.Column("limit_s", Real),
    sa.Column("priority", Whole, nullable=False),
    sa.Column("epoch", Whole, nullable=False, default=0),
    sa.Column("planned", sa.Boolean, nullable=False),
    sa.Column("cancel", sa.Boolean, nullable=False, default=False),
    sa.Column("created", Real, nullable=False),
    sa.Column("ended", Real),
    sa.Column("outcome", Text),
    sa.Column("detail", Text, nullable=False, default=""),
    sa.Column("next_seq", Whole, nullable=False, default=1),
    sa.Column("folder", Text, nullable=False, default=""),
)

models = sa.Table(
    "models",
    metadata,
    sa.Column("campaign", sa.ForeignKey("campaigns.id"), primary_key=True),
    sa.Column("name", Text, primary_key=True),
    sa.Column("sha256", Text, nullable=False, index=True),
    sa.Column("size", Whole, nullable=False),
    sa.Column("facts", Text, nullable=False, default=""),
)

tasks = sa.Table(
    "tasks",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("campaign", sa.ForeignKey("campaigns.id"), nullable=False),
    sa.Column("n", Whole, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("model", Text, nullable=False),
    sa.Column("sha256", Text, nullable=False),
    sa.Column("unit", Text, nullable=False),
    sa.Column("state", Text, nullable=False),
    sa.Column("attempt", Whole, nullable=False, default=0),
    sa.Column("tries", Whole, nullable=False, default=0),
    sa.Column("worker", Text),
    sa.Column("device", Text, nullable=False, default=""),
    sa.Column("lease", Text),
    sa.Column("incarnation", Whole),
    sa.Column("number", Whole),
    sa.Column("reason", Text),
    sa.Column("detail", Text, nullable=False, default=""),
    sa.Column("cancel", sa.Boolean, nullable=False, default=False),
    sa.Column("phase", Text),
    sa.Column("done", Whole, nullable=False, default=0),
    sa.Column("total", Whole),
    sa.Column("median_ms", Real),
    sa.Column("note", Text, nullable=False, default=""),
    sa.Column("begun", Real),
    sa.Column("ended", Real),
    sa.Column("position", Whole),
    sa.Column("start_s", Real),
    sa.Column("preempted", Whole, nullable=False, default=0),
    sa.Column("replica", Whole),
    sa.UniqueConstraint("campaign", "n"),
    sa.Index("ix_tasks_state", "campaign", "state"),
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("task", sa.ForeignKey("tasks.id"), primary_key=True),
    sa.Column("attempt", Whole, primary_key=True),
    sa.Column("key", Text, nullable=False),
    sa.Column("worker", Text, nullable=False),
    sa.Column("device", Text, nullable=False),
    sa.Column("epoch", Whole, nullable=False),
    sa.Column("state", Text, nullable=False),
    sa.Column("lease", Text),
    sa.Column("incarnation", Whole),
    sa.Column("number", Whole),
    sa.Column("reason", Text),
    sa.Column("detail", Text, nullable=False, default=""),
    sa.Column("begun", Real, nullable=False),
    sa.Column("ended", Real),
)

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
    sa.Index(
        "one_result_for_each_task",
        "task",
        unique=True,
        sqlite_where=sa.text("decides = 1"),
        postgresql_where=sa.text("decides"),
    ),
)

results = sa.Table(
    "results",
    metadata,
    sa.Column("task", sa.ForeignKey("tasks.id"), primary_key=True),
    sa.Column("campaign", sa.ForeignKey("campaigns.id"), nullable=False),
    sa.Column("n", Whole, nullable=False),
    sa.Column("ended", Real, nullable=False),
    sa.Column("state", Text, nullable=False),
    sa.Column("reason", Text, nullable=False, default=""),
    sa.Column("model", Text, nullable=False),
    sa.Column("sha256", Text, nullable=False),
    sa.Column("unit", Text, nullable=False),
    sa.Column("device", Text, nullable=False, default=""),
    sa.Column("device_id", Text, nullable=False, default=""),
    sa.Column("soc", Text, nullable=False, default=""),
    sa.Column("system", Text, nullable=False, default=""),
    sa.Column("runtime", Text, nullable=False, default=""),
    sa.Column("threads", Whole),
    sa.Column("verdict", Text, nullable=False, default=""),
    sa.Column("fingerprint", Text, nullable=False, default=""),
    sa.Column("replica", Whole),
    *(sa.Column(str(figure), Real) for figure in FigureColumn),
    sa.Index("ix_results_ended", "ended", "task"),
    sa.Index("ix_results_campaign", "campaign", "ended", "task"),
    sa.Index("ix_results_model", "model", "ended", "task"),
)
"""One row for each ended task, derived from the other tables: what lists and pivots read."""

events = sa.Table(
    "events",
    metadata,
    sa.Column("campaign", sa.ForeignKey("campaigns.id"), primary_key=True),
    sa.Column("seq", Whole, primary_key=True),
    sa.Column("at", Real, nullable=False),
    sa.Column("name", Text, nullable=False),
    sa.Column("task", Text),
    sa.Column("fields", Text, nullable=False),
    sa.Column("hash", Text, nullable=False, default=""),
)

workers = sa.Table(
    "workers",
    metadata,
    sa.Column("peer", Text, primary_key=True),
    sa.Column("device", Text, nullable=False),
    sa.Column("addresses", Text, nullable=False),
    sa.Column("seen", Real, nullable=False),
)

experiments = sa.Table(
    "experiments",
    metadata,
    sa.Column("name", Text, primary_key=True),
    sa.Column("created", Real, nullable=False),
    sa.Column("every_s", Real),
    sa.Column("at_s", Real),
    sa.Column("alarm", Real, nullable=False),
    sa.Column("webhook", Text, nullable=False, default=""),
    sa.Column("secret_file", Text, nullable=False, default=""),
    sa.Column("due", Real),
)

versions = sa.Table(
    "experiment_versions",
    metadata,
    sa.Column("experiment", sa.ForeignKey("experiments.name"), primary_key=True),
    sa.Column("version", Whole, primary_key=True),
    sa.Column("digest", Text, nullable=False),
    sa.Column("spec", Text, nullable=False),
    sa.Column("models", Text, nullable=False),
    sa.Column("folder", Text, nullable=False),
    sa.Column("created", Real, nullable=False),
)

runs = sa.Table(
    "experiment_runs",
    metadata,
    sa.Column("campaign", Text, primary_key=True),
    sa.Column("experiment", sa.ForeignKey("experiments.name"), nullable=False, index=True),
    sa.Column("version", Whole, nullable=False),
    sa.Column("scheduled", sa.Boolean, nullable=False),
    sa.Column("begun", Real, nullable=False),
    sa.Column("judged", Real),
    sa.Column("finding", Text, nullable=False, default=""),
    sa.Column("cells", Text, nullable=False, default="[]"),
    sa.Column("accepted", sa.Boolean, nullable=False, default=False),
    sa.Column("hook", Text, nullable=False, default=""),
    sa.Column("hook_at", Real),
)
"""Runs outlive their campaigns, which may be deleted when they are old: the history is in the run itself."""

Migration = Callable[[sa.Connection], None]


def baseline(c: sa.Connection) -> None:
    """Version 1: all tables, in the open transaction."""
    metadata.create_all(c, checkfirst=False)


MIGRATIONS: Final[tuple[Migration, ...]] = (baseline,)
"""Numbered steps, only ever appended to. A store knows how many of them it has been through. The first step that is added freezes the
baseline as the tables that were released."""
