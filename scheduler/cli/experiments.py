"""What somebody types who keeps campaigns to measure them again: experiment save, list, show, diff, clone, remove."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from scheduler.cli import completion
from scheduler.cli.experiment_options import NAME, TITLE, finding, local, when
from scheduler.cli.experiment_run import accept, history, run
from scheduler.cli.experiment_schedule import schedule, tick
from scheduler.cli.options import JSON, PANEL, fetching, new_console, print_json
from swarm.base.home import Home
from swarm.base.text import safe_text


def save(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="A campaign file.")],
    name: Annotated[
        str | None, typer.Option(help="What it is called.  \\[default: the campaign's name]")
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Keep a campaign file as an experiment. A version is made when it, or a model's bytes, differ from the latest."""
    from scheduler.experiments.service import save as keep
    from scheduler.experiments.view import version_view
    from scheduler.store.opening import open_store

    home: Home = ctx.obj
    with open_store(home) as store:
        version, new = keep(store, file, name=name, fetch=fetching(home))
        row = store.experiments.get(version.experiment)
    if as_json:
        print_json({**version_view(version).model_dump(mode="json"), "new": new})
        return
    print(f"{version.title} is {'saved' if new else 'the same as before'}.")
    if row is not None and row.due is not None and row.every_s is not None:
        print(when(row.every_s, row.due))
        print("It runs by itself while one of these runs: sark-node serve, sark-node schedule --stay, or")
        print("sark-node experiment tick, from cron or a timer.")
    else:
        print(f"Run it: sark-node experiment run {version.experiment}")


def list_(ctx: typer.Context, as_json: Annotated[bool, JSON] = False) -> None:
    """List this home's experiments: versions, schedule, and what came of the last run."""
    from scheduler.experiments.view import experiments_view
    from scheduler.store.opening import open_store

    with open_store(ctx.obj) as store:
        found = experiments_view(store)
    if as_json:
        print_json({"count": len(found), "experiments": [item.model_dump(mode="json") for item in found]})
        return
    if not found:
        print("No experiments yet. Begin with: sark-node experiment save campaign.yaml")
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for head in ("experiment", "versions", "runs", "schedule", "next", "last run", "finding"):
        table.add_column(head, justify="right" if head in ("versions", "runs") else "left")
    for item in found:
        table.add_row(
            Text(safe_text(item.name)),
            str(item.latest),
            str(item.runs),
            item.schedule or "",
            local(item.due),
            local(item.last_run),
            finding(item.last_finding or ""),
        )
    new_console().print(table)


def show(ctx: typer.Context, title: Annotated[str, TITLE], as_json: Annotated[bool, JSON] = False) -> None:
    """Show a version as a campaign file, with the hashes of its models."""
    from scheduler.experiments.service import find, find_version, schedule_of
    from scheduler.experiments.view import version_text, version_view
    from scheduler.store.opening import open_store

    with open_store(ctx.obj) as store:
        version = find_version(store, title)
        schedule = schedule_of(find(store, version.experiment))
    if as_json:
        print_json(version_view(version).model_dump(mode="json"))
        return
    sys.stdout.write(version_text(version, schedule=schedule))


def diff(
    ctx: typer.Context,
    one: Annotated[str, typer.Argument(metavar="NAME@V", autocompletion=completion.experiments)],
    other: Annotated[str, typer.Argument(metavar="NAME@V", autocompletion=completion.experiments)],
) -> None:
    """What differs between two versions. Exit code 0: nothing, 1: something."""
    from scheduler.experiments.service import find_version
    from scheduler.experiments.view import version_text
    from scheduler.store.opening import open_store

    with open_store(ctx.obj) as store:
        left, right = find_version(store, one), find_version(store, other)
    before, after = (version_text(version, title=False).splitlines() for version in (left, right))
    lines = list(difflib.unified_diff(before, after, left.title, right.title, lineterm="", n=2))
    for line in lines:
        inner = line[1:].lstrip(" ")
        print(line[:1] + " " * (len(line) - 1 - len(inner)) + safe_text(inner, 2000))
    if lines:
        raise SystemExit(1)


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
            help="Change a key on the way, such as measure.batch=[1,8], models.1.path=b.onnx or campaign=again. Repeatable.",
            metavar="KEY=VALUE",
        ),
    ] = None,
) -> None:
    """Write a past campaign, or a version, to standard output as a file that can be edited and run again."""
    from scheduler.experiments.clone import clone_text
    from scheduler.store.opening import open_store

    with open_store(ctx.obj) as store:
        text = clone_text(store, source, changes or ())
    sys.stdout.write(text)


def remove(ctx: typer.Context, name: Annotated[str, NAME]) -> None:
    """Forget an experiment with its versions and history. Its campaigns and their results stay."""
    from scheduler.experiments.service import find
    from scheduler.store.opening import open_store

    with open_store(ctx.obj) as store:
        find(store, name)
        store.experiments.remove(name)
    print(f"{safe_text(name)} is forgotten.")


def add_experiment(program: typer.Typer) -> None:
    """Give the program `experiment …`."""
    app = typer.Typer(
        help="Measure the same again and again: named, versioned campaigns, on a schedule, with an alarm when a result gets worse.",
        no_args_is_help=True,
    )
    app.command()(save)
    app.command("list")(list_)
    for command in (show, diff, clone, run, history, accept, schedule, tick, remove):
        app.command()(command)
    program.add_typer(app, name="experiment", rich_help_panel=PANEL)
