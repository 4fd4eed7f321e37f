"""Commands that define experiments: experiment save, list, show, diff, clone, schedule, remove."""

from __future__ import annotations

import difflib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from protocol.errors import CampaignError
from scheduler.cli import completion
from scheduler.cli.experiment_runs import NAME, TITLE, accept, finding_text, history, local_time, run, tick
from scheduler.cli.options import CAMPAIGNS, FILE, JSON, fetching
from swarm.base.home import Home
from swarm.base.screen import new_console, print_json
from swarm.base.text import safe_text

if TYPE_CHECKING:
    from scheduler.campaign.model import Schedule
    from scheduler.store.rows import ExperimentRow

app = typer.Typer(
    help="Repeat measurements: named, versioned campaigns that run on a schedule and report regressions.",
    no_args_is_help=True,
)


@app.command()
def save(
    ctx: typer.Context,
    file: Annotated[Path, FILE],
    name: Annotated[
        str | None, typer.Option(help="Name of the experiment.  \\[default: the campaign's name]")
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Save a campaign file as an experiment. A new version is made if the file or a model has changed."""
    from scheduler.experiments.service import save as save_version
    from scheduler.experiments.view import version_view
    from scheduler.store.store import open_store

    home: Home = ctx.obj
    with open_store(home) as store:
        version, new = save_version(store, file, name=name, fetch=fetching(home))
        row = store.experiments.get(version.experiment)
    if as_json:
        print_json({**version_view(version).model_dump(mode="json"), "new": new})
        return
    print(f"{version.title} is {'saved' if new else 'unchanged'}.")
    if row is not None and row.due is not None:
        print(_schedule_line(row))
        print(
            "Scheduled runs need one of: sark-node serve, sark-node schedule --stay, or from cron or a timer"
        )
        print("sark-node experiment tick")
    else:
        print(f"Run it: sark-node experiment run {version.experiment}")


@app.command("list")
def list_(ctx: typer.Context, as_json: Annotated[bool, JSON] = False) -> None:
    """List this home's experiments with versions, schedule and the last finding."""
    from scheduler.experiments.view import experiments_view
    from scheduler.store.store import open_store

    with open_store(ctx.obj) as store:
        views = experiments_view(store)
    if as_json:
        print_json({"count": len(views), "experiments": [view.model_dump(mode="json") for view in views]})
        return
    if not views:
        print("No experiments yet. Save one: sark-node experiment save campaign.yaml")
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("experiment", "versions", "runs", "schedule", "next", "last run", "finding"):
        table.add_column(column, justify="right" if column in ("versions", "runs") else "left")
    for view in views:
        table.add_row(
            Text(safe_text(view.name)),
            str(view.latest),
            str(view.runs),
            view.schedule or "",
            local_time(view.due),
            local_time(view.last_run),
            finding_text(view.last_finding or ""),
        )
    new_console().print(table)


@app.command()
def show(ctx: typer.Context, title: Annotated[str, TITLE], as_json: Annotated[bool, JSON] = False) -> None:
    """Print a version as a campaign file, with the hashes of its models."""
    from scheduler.experiments.service import find, find_version, schedule_of
    from scheduler.experiments.view import version_text, version_view
    from scheduler.store.store import open_store

    with open_store(ctx.obj) as store:
        version = find_version(store, title)
        schedule = schedule_of(find(store, version.experiment))
    if as_json:
        print_json(version_view(version).model_dump(mode="json"))
        return
    sys.stdout.write(version_text(version, schedule=schedule))


@app.command()
def diff(
    ctx: typer.Context,
    one: Annotated[str, typer.Argument(metavar="NAME@V", autocompletion=completion.experiments)],
    other: Annotated[str, typer.Argument(metavar="NAME@V", autocompletion=completion.experiments)],
) -> None:
    """Print the differences between two versions. Exit code 0: none, 1: some."""
    from scheduler.experiments.service import find_version
    from scheduler.experiments.view import version_text
    from scheduler.store.store import open_store

    with open_store(ctx.obj) as store:
        left, right = find_version(store, one), find_version(store, other)
    before, after = (version_text(version, title=False).splitlines() for version in (left, right))
    lines = list(difflib.unified_diff(before, after, left.title, right.title, lineterm="", n=2))
    for line in lines:
        text = line[1:].lstrip(" ")
        print(line[:1] + " " * (len(line) - 1 - len(text)) + safe_text(text, 2000))
    if lines:
        raise SystemExit(1)


@app.command()
def clone(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            help="A campaign of this home, or an experiment.",
            metavar="CAMPAIGN|NAME[@V]",
            autocompletion=completion.campaigns_or_experiments,
        ),
    ],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Change a key, such as measure.batch=[1,8], models.1.path=b.onnx or campaign=second. Repeatable.",
            metavar="KEY=VALUE",
        ),
    ] = None,
) -> None:
    """Print a campaign or version as a campaign file, to edit and run again."""
    from scheduler.experiments.clone import clone_text
    from scheduler.store.store import open_store

    with open_store(ctx.obj) as store:
        text = clone_text(store, source, changes or ())
    sys.stdout.write(text)


for command in (run, history, accept):
    app.command()(command)


@app.command()
def schedule(
    ctx: typer.Context,
    name: Annotated[str, NAME],
    every: Annotated[str | None, typer.Option(help="Interval between runs, such as 6h or 1d.")] = None,
    at: Annotated[str | None, typer.Option(help="Time of day in UTC, such as 03:00.")] = None,
    alarm: Annotated[
        str | None,
        typer.Option(help="Smallest significant slowdown that is a regression, such as 5%.  \\[default: 1%]"),
    ] = None,
    webhook: Annotated[
        str | None, typer.Option(help="Report regressions to this https or loopback URL.", metavar="URL")
    ] = None,
    secret_file: Annotated[
        Path | None, typer.Option(help="File with the secret that signs webhooks.", dir_okay=False)
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Remove the schedule.")] = False,
) -> None:
    """Set or remove an experiment's schedule."""
    from scheduler.experiments.schedule import read_secret
    from scheduler.experiments.service import find, set_schedule
    from scheduler.store.store import open_store

    if off == (every is not None):
        raise CampaignError("a schedule requires --every or --off", hint="such as --every 1d --at 03:00")
    new = None if off else _parse_schedule(every, at, alarm, webhook)
    secret = None if secret_file is None else str(secret_file.absolute())
    if secret is not None:
        read_secret(secret)
    with open_store(ctx.obj) as store:
        set_schedule(store, name, new, now=time.time(), secret_file=secret)
        row = find(store, name)
    print(f"{safe_text(name)} has no schedule." if row.due is None else _schedule_line(row))


def _parse_schedule(every: str | None, at: str | None, alarm: str | None, webhook: str | None) -> Schedule:
    from pydantic import ValidationError

    from scheduler.campaign.model import Schedule

    values = {"every": every, "at": at, "alarm": alarm, "webhook": webhook}
    try:
        return Schedule.model_validate({key: value for key, value in values.items() if value is not None})
    except ValidationError as exc:
        error = exc.errors(include_url=False)[0]
        context = error.get("ctx", {})
        raise CampaignError(
            f"--{error['loc'][0]}: {context.get('what', error['msg'])}", hint=context.get("hint", "")
        ) from None


def _schedule_line(row: ExperimentRow) -> str:
    from scheduler.experiments.view import show_every

    return f"Runs {show_every(row.every_s or 0.0)}, next at {local_time(row.due)}."


app.command()(tick)


@app.command()
def remove(ctx: typer.Context, name: Annotated[str, NAME]) -> None:
    """Remove an experiment with its versions and history. Its campaigns and their results remain."""
    from scheduler.experiments.service import find
    from scheduler.store.store import open_store

    with open_store(ctx.obj) as store:
        find(store, name)
        store.experiments.remove(name)
    print(f"{safe_text(name)} is removed.")


def add_experiment(program: typer.Typer) -> None:
    """Add `experiment …` to the program."""
    program.add_typer(app, name="experiment", rich_help_panel=CAMPAIGNS)
