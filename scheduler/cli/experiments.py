"""Commands that save, schedule and run experiments, and show their results over time."""

from __future__ import annotations

import difflib
import sys
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer
from rich.table import Column
from rich.text import Text

from protocol.errors import CampaignError
from scheduler.cli import completion
from scheduler.cli.options import (
    CAMPAIGNS,
    AsJson,
    CampaignFile,
    Detach,
    Gates,
    Wait,
    answering_gates,
    duration_option,
    fetching,
    follow,
    gates_of,
    keeper,
    opened,
    print_campaign,
    units_in_reach,
)
from scheduler.output.terminal import number, print_lines, show_figure, show_interval, table
from swarm.base.screen import new_console, print_json
from swarm.base.text import safe_text
from swarm.base.units import local_time, show_ms

if TYPE_CHECKING:
    from scheduler.experiments.view import CellHistory, History
    from scheduler.store.rows import ExperimentRow, VersionRow
    from scheduler.store.store import Store

app = typer.Typer(
    help="Repeat measurements: named, versioned campaigns that run on a schedule and report regressions.",
    no_args_is_help=True,
)


ExperimentName = Annotated[
    str, typer.Argument(help="The experiment's name.", metavar="NAME", autocompletion=completion.experiments)
]
ExperimentTitle = Annotated[
    str,
    typer.Argument(
        help="The experiment, or one of its versions, such as nightly@3.",
        metavar="NAME[@V]",
        autocompletion=completion.experiments,
    ),
]
POLL_S: Final = 0.5
_STYLES: Final = {
    "regression": "red",
    "slower": "red",
    "more-memory": "red",
    "failed": "red",
    "faster": "green",
    "not-started": "red",
}


@app.command()
def save(
    ctx: typer.Context,
    file: CampaignFile,
    name: Annotated[
        str | None, typer.Option(help="Name of the experiment.  \\[default: the campaign's name]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Save a campaign file as an experiment. A new version is made if the file or a model has changed."""
    from scheduler.experiments.service import find
    from scheduler.experiments.service import save as save_version
    from scheduler.experiments.view import version_view

    with opened(ctx) as store:
        version, new = save_version(
            store, file, name=name, fetch=fetching(ctx.obj), find_units=units_in_reach(ctx)
        )
        row = find(store, version.experiment)
    if as_json:
        print_json({**version_view(version).model_dump(mode="json"), "new": new})
        return
    print(f"{version.title} is {'saved' if new else 'unchanged'}.")
    if row.due is not None:
        print(_schedule_line(row))
        print(
            "Scheduled runs start only while one of these runs: sark-node serve, sark-node schedule --stay,"
        )
        print("or from cron or a timer: sark-node experiment tick")
    else:
        print(f"Run it: sark-node experiment run {quote(version.experiment)}")


@app.command("list")
def list_(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List this home's experiments with versions, schedule and the last finding."""
    from scheduler.experiments.view import experiment_view

    with opened(ctx) as store:
        views = [experiment_view(store, row) for row in store.experiments.all()]
    if as_json:
        print_json({"count": len(views), "experiments": views})
        return
    if not views:
        print("No experiments yet. Save one: sark-node experiment save campaign.yaml")
        return
    lines = table(
        views,
        (Column("experiment"), lambda view: safe_text(view.name)),
        (number("versions"), lambda view: str(view.latest)),
        (number("runs"), lambda view: str(view.runs)),
        (Column("schedule"), lambda view: view.schedule or ""),
        (Column("next"), lambda view: local_time(view.due)),
        (Column("last run"), lambda view: local_time(view.last_run)),
        (Column("finding"), lambda view: _finding_text(view.last_finding or "")),
    )
    new_console().print(lines)


@app.command()
def show(ctx: typer.Context, title: ExperimentTitle, as_json: AsJson = False) -> None:
    """Print a version as a campaign file, with the hashes of its models."""
    from scheduler.experiments.service import find, find_version, schedule_of
    from scheduler.experiments.view import version_text, version_view

    with opened(ctx) as store:
        version = find_version(store, title)
        schedule = schedule_of(find(store, version.experiment))
    if as_json:
        print_json(version_view(version))
    else:
        sys.stdout.write(version_text(version, schedule=schedule))


@app.command()
def diff(
    ctx: typer.Context,
    one: Annotated[
        str,
        typer.Argument(help="The earlier version.", metavar="NAME@V", autocompletion=completion.experiments),
    ],
    other: Annotated[
        str,
        typer.Argument(help="The later version.", metavar="NAME@V", autocompletion=completion.experiments),
    ],
) -> None:
    """Print the differences between two versions. Exit code 0: none, 1: some."""
    from scheduler.experiments.service import find_version
    from scheduler.experiments.view import version_text

    with opened(ctx) as store:
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
    from scheduler.models.uploads import uploads_folder

    with opened(ctx) as store:
        text = clone_text(store, source, changes or (), uploads_folder(ctx.obj))
    sys.stdout.write(text)


@app.command()
def run(
    ctx: typer.Context,
    title: ExperimentTitle,
    gate: Gates = None,
    detach: Detach = False,
    wait: Wait = "60s",
    as_json: AsJson = False,
) -> None:
    """Run an experiment now, and compare it with the last good run. Exit codes as for submit; 1 also for a regression."""
    gates = answering_gates(ctx, gate)
    with opened(ctx) as store:
        campaign, version = _begin(ctx, store, title, duration_option("--wait", wait))
    keep_alive = keeper(ctx, gates)
    keep_alive()
    if detach:
        reply = {"campaign": campaign, "experiment": version.experiment, "version": version.version}
        print_campaign(campaign, reply, as_json=as_json)
        return
    print(f"{safe_text(version.title)} runs as campaign {campaign}.", file=sys.stderr)
    follow_run(ctx, campaign, keep_alive, csv=None, as_json=as_json)


def submit_version(ctx: typer.Context, file: Path, name: str, wait_s: float) -> str:
    """Save `file` as a version of the experiment `name` and run it; returns the campaign's id."""
    from scheduler.experiments.service import save as save_version

    with opened(ctx) as store:
        version, _ = save_version(
            store, file, name=name, fetch=fetching(ctx.obj), find_units=units_in_reach(ctx)
        )
        campaign, _ = _begin(ctx, store, version.title, wait_s)
    print(f"{safe_text(version.title)} runs as campaign {campaign}.", file=sys.stderr)
    return campaign


def _begin(ctx: typer.Context, store: Store, title: str, wait_s: float) -> tuple[str, VersionRow]:
    from scheduler.experiments.service import begin
    from scheduler.preview.look import check_devices

    check = partial(check_devices, ctx.obj, gates=lambda: gates_of(ctx, None))
    started = begin(ctx.obj, store, title, check=check, fetch=fetching(ctx.obj), wait_s=wait_s)
    assert started is not None, "only scheduled runs can be started by another process"
    return started


def follow_run(
    ctx: typer.Context, campaign: str, keep_alive: Callable[[], None], *, csv: Path | None, as_json: bool
) -> NoReturn:
    """Watch a run to its end, print the finding, and exit with 1 for a regression, else with the campaign's exit code."""
    from results.analysis.regression import RegressionFinding
    from scheduler.experiments.confirm import confirmation_of
    from scheduler.experiments.judge import alarm_lines, finding_words

    code: object = 0
    try:
        follow(ctx, campaign, keep_alive, csv=csv, as_json=as_json)
    except SystemExit as exc:
        code = exc.code
    if code == 130:
        raise SystemExit(130)
    _step_schedules(ctx, begin=False)
    with opened(ctx) as store:
        finished = store.experiments.run(campaign)
    if finished is not None and finished.finding == RegressionFinding.CONFIRMING:
        words = f"It seems slower, so it is measured again first: campaign {confirmation_of(campaign)}."
        print(words, file=sys.stderr)
        _await_confirmations(ctx, keep_alive, campaign)
        with opened(ctx) as store:
            finished = store.experiments.run(campaign)
    if finished is not None:
        print(f"Compared with earlier runs: {finding_words(finished)}.", file=sys.stderr)
        for line in alarm_lines(finished):
            print(f"  {line}", file=sys.stderr)
        if finished.finding == RegressionFinding.REGRESSION:
            code = 1
    raise SystemExit(code)


@app.command()
def history(
    ctx: typer.Context,
    name: ExperimentName,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of runs to show.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show an experiment's results over time: medians of each run by model, unit and device, compared with the last good run."""
    from scheduler.experiments.judge import judge_ended
    from scheduler.experiments.view import history_view

    with opened(ctx) as store:
        judge_ended(store)
        view = history_view(store, name, limit=limit)
    if as_json:
        print_json(view)
    elif view.runs:
        show_history(view)
    else:
        print(f"{safe_text(name)} has not run yet. Run it: sark-node experiment run {quote(safe_text(name))}")


@app.command()
def accept(
    ctx: typer.Context,
    campaign: Annotated[
        str,
        typer.Argument(
            help="A run's campaign id or its first characters.", autocompletion=completion.campaigns
        ),
    ],
) -> None:
    """Accept a run's results as the new baseline for later runs, even after a regression."""
    from scheduler.experiments.judge import judge_ended

    with opened(ctx) as store:
        judge_ended(store)
        campaign_id = store.campaigns.resolve(campaign)
        if not store.experiments.accept_run(campaign_id):
            raise CampaignError(
                f"{campaign_id} is not an ended run of an experiment",
                hint="list runs: sark-node experiment history NAME",
            )
    print(f"{campaign_id} is the new baseline.")


@app.command()
def schedule(
    ctx: typer.Context,
    name: ExperimentName,
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
    from scheduler.experiments.service import find, read_schedule, set_schedule

    if off == (every is not None):
        raise CampaignError("a schedule requires --every or --off", hint="such as --every 1d --at 03:00")
    given = {"every": every, "at": at, "alarm": alarm, "webhook": webhook}
    new = None if off else read_schedule(given, "--")
    secret = None if secret_file is None else str(secret_file.absolute())
    if secret is not None:
        read_secret(secret)
    with opened(ctx) as store:
        set_schedule(store, name, new, now=time.time(), secret_file=secret)
        row = find(store, name)
    print(f"{safe_text(name)} has no schedule." if row.due is None else _schedule_line(row))


def _schedule_line(row: ExperimentRow) -> str:
    from scheduler.experiments.view import show_every

    return f"Runs {show_every(row.every_s or 0.0)}, next at {local_time(row.due)}."


@app.command()
def tick(ctx: typer.Context, gate: Gates = None) -> None:
    """Run the experiments that are due, wait for them, and report regressions. For cron and timers.

    Exit code 0: no regression, 1: at least one. A run that could not be measured is reported, but is no regression.
    """
    from results.analysis.regression import RegressionFinding
    from scheduler.experiments.judge import alarm_lines, why_not_started

    with opened(ctx) as store:
        before = {
            run.campaign
            for row in store.experiments.all()
            for run in store.experiments.runs(row.name)
            if run.judged and run.finding != RegressionFinding.CONFIRMING
        }
    started = _step_schedules(ctx, begin=True)
    with opened(ctx) as store:
        confirming = store.experiments.confirming()
    if started or confirming:
        keep_alive = keeper(ctx, gates_of(ctx, gate))
        _wait_for(ctx, started, keep_alive)
        _step_schedules(ctx, begin=False)
        _await_confirmations(ctx, keep_alive)
    regression = False
    with opened(ctx) as store:
        for row in store.experiments.all():
            for run in reversed(store.experiments.runs(row.name)):
                if run.judged is None or run.campaign in before:
                    continue
                words = (
                    f"{safe_text(run.experiment)}@{run.version}",
                    run.campaign,
                    run.finding,
                    why_not_started(run),
                )
                print("  ".join(map(str, words)).rstrip())
                for line in alarm_lines(run):
                    print(f"  {line}")
                regression = regression or run.finding == RegressionFinding.REGRESSION
    raise SystemExit(1 if regression else 0)


def _wait_for(ctx: typer.Context, campaigns: Collection[str], keep_alive: Callable[[], None]) -> None:
    """Wait until all of `campaigns` have ended."""
    with opened(ctx) as store:
        while set(campaigns) & {row.id for row in store.campaigns.unfinished()}:
            keep_alive()
            time.sleep(POLL_S)


def _await_confirmations(ctx: typer.Context, keep_alive: Callable[[], None], campaign: str = "") -> None:
    """Wait until no run (with `campaign`: not that run) is being measured again, whichever process started that."""
    from scheduler.experiments.confirm import confirmation_of

    while True:
        with opened(ctx) as store:
            runs = [run.campaign for run in store.experiments.confirming()]
        if not runs or (campaign and campaign not in runs):
            return
        _wait_for(ctx, [confirmation_of(run) for run in runs], keep_alive)
        _step_schedules(ctx, begin=False)
        time.sleep(POLL_S)


def _step_schedules(ctx: typer.Context, *, begin: bool) -> list[str]:
    """One step of the schedules: judge ended runs, send webhooks and, with `begin`, start what is due; returns the new campaigns."""
    import trio

    from scheduler.experiments.schedule import Schedules
    from scheduler.preview.look import check_devices

    async def step() -> list[str]:
        check = partial(check_devices, ctx.obj, gates=lambda: gates_of(ctx, None))
        schedules = Schedules(ctx.obj, lambda: opened(ctx), fetching(ctx.obj), check)
        try:
            return await schedules.step(begin=begin)
        finally:
            schedules.close()

    return trio.run(step)


@app.command()
def remove(ctx: typer.Context, name: ExperimentName) -> None:
    """Remove an experiment with its versions and history. Its campaigns and their results remain."""
    from scheduler.experiments.service import remove as remove_experiment

    with opened(ctx) as store:
        remove_experiment(store, name)
    print(f"{safe_text(name)} is removed.")


def show_history(history: History) -> None:
    """Print a table for each model, unit and device, latest run first."""
    from scheduler.output.comparisons import unit_words

    console = new_console()
    for cell in history.cells:
        unit = unit_words(safe_text(cell.unit, 60), cell.threads, cell.batch)
        mark = "  [simulation]" if cell.simulated else ""
        where = f"{unit} on {safe_text(cell.device, 60) or 'no device'}{mark}"
        console.print(Text(f"{safe_text(cell.model, 60)} × {where}", style="bold"), soft_wrap=True)
        lines = table(
            cell.points,
            (Column("  started"), lambda point: f"  {local_time(point.begun)}"),
            (Column("version"), lambda point: f"@{point.version}"),
            (Column("campaign"), lambda point: point.campaign),
            (number("median ms"), lambda point: show_figure(point.median_ms)),
            (number("95 %"), lambda point: show_interval(point.low_ms, point.high_ms)),
            (number("memory MB"), lambda point: show_figure(point.memory_mb, ".1f")),
            (Column("verdict"), lambda point: safe_text(point.verdict or point.status, 40)),
            (Column("finding"), lambda point: _finding_text(point.finding)),
            (number("ratio"), lambda point: show_figure(point.ratio, ".3f")),
        )
        console.print(lines)
        print_lines((f"  {line}" for line in trend_lines(cell)), console)
    for run in history.runs:
        notes = [f"{run.finding}: {safe_text(run.why, 300)}"] if run.why else []
        if run.webhook not in ("", "sent", "due", "sending"):
            notes.append(f"webhook: {safe_text(run.webhook, 300)}")
        print_lines((f"{local_time(run.begun)}  {note}" for note in notes), console)


def trend_lines(cell: CellHistory) -> list[str]:
    """Lines that say when the cell's median changed and by how much, and what the median is since then."""
    lines = [
        f"changed by {shift.ratio - 1:+.1%} with the run of {local_time(shift.begun)} ({shift.campaign}): "
        f"{show_ms(shift.before_ms)} → {show_ms(shift.after_ms)}"
        for shift in cell.changes
    ]
    return lines + (
        [f"since then: {cell.pooled.words}" if lines else cell.pooled.words] if cell.pooled else []
    )


def _finding_text(finding: str) -> Text:
    """A finding in its colour."""
    return Text(finding, style=_STYLES.get(finding, ""))


def add_experiment(program: typer.Typer) -> None:
    """Add `experiment …` to the program."""
    program.add_typer(app, name="experiment", rich_help_panel=CAMPAIGNS)
