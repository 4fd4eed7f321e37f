"""Where experiments are kept: what they are, their versions and what came of their runs. Beside the tables of `scheduler.store.schema`.

Runs outlive their campaigns, which may be removed when they are old: what a history shows is in the run itself.
"""

from __future__ import annotations

import sqlalchemy as sa

from scheduler.store import schema as t

experiments = sa.Table(
    "experiments",
    t.metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("every_s", sa.Float),
    sa.Column("at_s", sa.Float),
    sa.Column("alarm", sa.Float, nullable=False),
    sa.Column("webhook", sa.Text, nullable=False, default=""),
    sa.Column("secret_file", sa.Text, nullable=False, default=""),
    sa.Column("due", sa.Float),
)

versions = sa.Table(
    "experiment_versions",
    t.metadata,
    sa.Column("experiment", sa.ForeignKey("experiments.name"), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("spec", sa.Text, nullable=False),
    sa.Column("models", sa.Text, nullable=False),
    sa.Column("folder", sa.Text, nullable=False),
    sa.Column("created", sa.Float, nullable=False),
)

runs = sa.Table(
    "experiment_runs",
    t.metadata,
    sa.Column("campaign", sa.Text, primary_key=True),
    sa.Column("experiment", sa.ForeignKey("experiments.name"), nullable=False, index=True),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("scheduled", sa.Boolean, nullable=False),
    sa.Column("begun", sa.Float, nullable=False),
    sa.Column("judged", sa.Float),
    sa.Column("finding", sa.Text, nullable=False, default=""),
    sa.Column("cells", sa.Text, nullable=False, default="[]"),
    sa.Column("accepted", sa.Boolean, nullable=False, default=False),
    sa.Column("hook", sa.Text, nullable=False, default=""),
    sa.Column("hook_at", sa.Float),
)

folders = sa.Table(
    "campaign_folders",
    t.metadata,
    sa.Column("campaign", sa.Text, primary_key=True),
    sa.Column("folder", sa.Text, nullable=False),
)
