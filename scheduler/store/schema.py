"""The tables of the scheduler's store as they are now, for SQLite and for PostgreSQL. A change here is a migration too."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from results.export.columns import FigureColumn


class Words(TypeDecorator[str]):
    """Text. PostgreSQL keeps no NUL in one, and peers may send it in what they say: it is replaced wherever it is stored."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """What is stored for `value`."""
        return value.replace("\0", "\ufffd") if value is not None and "\0" in value else value


Whole: Final[sa.types.TypeEngine[int]] = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""64 bits on both: sizes and fences need them."""
Real: Final[sa.types.TypeEngine[float]] = sa.Double().with_variant(sa.Float, "sqlite")
"""64 bits on both."""

metadata = sa.MetaData()

campaigns = sa.Table(
    "campaigns",
    metadata,
    sa.Column("id", Words, primary_key=True),
    sa.Column("name", Words, nullable=False),
    sa.Column("scheduler", Words, nullable=False),
    sa.Column("spec", Words, nullable=False),
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
    sa.Column("outcome", Words),
    sa.Column("detail", Words, nullable=False, default=""),
    sa.Column("next_seq", Whole, nullable=False, default=1),
)

models = sa.Table(
    "models",
    metadata,
    sa.Column("campaign", sa.ForeignKey("campaigns.id"), primary_key=True),
    sa.Column("name", Words, primary_key=True),
    sa.Column("sha256", Words, nullable=False, index=True),
    sa.Column("size", Whole, nullable=False),
    sa.Column("facts", Words, nullable=False, default=""),
)

tasks = sa.Table(
    "tasks",
    metadata,
    sa.Column("id", Words, primary_key=True),
    sa.Column("campaign", sa.ForeignKey("campaigns.id"), nullable=False),
    sa.Column("n", Whole, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("model", Words, nullable=False),
    sa.Column("sha256", Words, nullable=False),
    sa.Column("unit", Words, nullable=False),
    sa.Column("state", Words, nullable=False),
    sa.Column("attempt", Whole, nullable=False, default=0),
    sa.Column("tries", Whole, nullable=False, default=0),
    sa.Column("worker", Words),
    sa.Column("device", Words, nullable=False, default=""),
    sa.Column("lease", Words),
    sa.Column("incarnation", Whole),
    sa.Column("number", Whole),
    sa.Column("reason", Words),
    sa.Column("detail", Words, nullable=False, default=""),
    sa.Column("cancel", sa.Boolean, nullable=False, default=False),
    sa.Column("phase", Words),
    sa.Column("done", Whole, nullable=False, default=0),
    sa.Column("total", Whole),
    sa.Column("median_ms", Real),
    sa.Column("note", Words, nullable=False, default=""),
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
    sa.Column("key", Words, nullable=False),
    sa.Column("worker", Words, nullable=False),
    sa.Column("device", Words, nullable=False),
    sa.Column("epoch", Whole, nullable=False),
    sa.Column("state", Words, nullable=False),
    sa.Column("lease", Words),
    sa.Column("incarnation", Whole),
    sa.Column("number", Whole),
    sa.Column("reason", Words),
    sa.Column("detail", Words, nullable=False, default=""),
    sa.Column("begun", Real, nullable=False),
    sa.Column("ended", Real),
)

records = sa.Table(
    "records",
    metadata,
    sa.Column("task", sa.ForeignKey("tasks.id"), primary_key=True),
    sa.Column("attempt", Whole, primary_key=True),
    sa.Column("worker", Words, nullable=False),
    sa.Column("sha256", Words, nullable=False),
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
    sa.Column("state", Words, nullable=False),
    sa.Column("reason", Words, nullable=False, default=""),
    sa.Column("model", Words, nullable=False),
    sa.Column("sha256", Words, nullable=False),
    sa.Column("unit", Words, nullable=False),
    sa.Column("device", Words, nullable=False, default=""),
    sa.Column("device_id", Words, nullable=False, default=""),
    sa.Column("soc", Words, nullable=False, default=""),
    sa.Column("system", Words, nullable=False, default=""),
    sa.Column("runtime", Words, nullable=False, default=""),
    sa.Column("threads", Whole),
    sa.Column("verdict", Words, nullable=False, default=""),
    sa.Column("fingerprint", Words, nullable=False, default=""),
    sa.Column("replica", Whole),
    *(sa.Column(str(figure), Real) for figure in FigureColumn),
    sa.Index("ix_results_ended", "ended", "task"),
    sa.Index("ix_results_campaign", "campaign", "ended", "task"),
    sa.Index("ix_results_model", "model", "ended", "task"),
)
"""One row for each task that has ended: what lists and pivots read. All of it follows from the other tables."""

events = sa.Table(
    "events",
    metadata,
    sa.Column("campaign", sa.ForeignKey("campaigns.id"), primary_key=True),
    sa.Column("seq", Whole, primary_key=True),
    sa.Column("at", Real, nullable=False),
    sa.Column("name", Words, nullable=False),
    sa.Column("task", Words),
    sa.Column("fields", Words, nullable=False),
    sa.Column("hash", Words, nullable=False, default=""),
)

workers = sa.Table(
    "workers",
    metadata,
    sa.Column("peer", Words, primary_key=True),
    sa.Column("device", Words, nullable=False),
    sa.Column("addresses", Words, nullable=False),
    sa.Column("seen", Real, nullable=False),
)
