"""What somebody types who measures the same again and again: experiment save, run, history, schedule, tick …"""

from __future__ import annotations

import difflib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from protocol.errors import CampaignError, Unreachable
from scheduler.cli_parts import (
    GATE,
    JSON,
    PANEL,
    count,
    fetching,
    find_campaign,
    gates_of,
    keeper,
    new_console,
    print_json,
)
from scheduler.safe import safe_text
from swarm.home import Home

if TYPE_CHECKING:
    from scheduler.campaign_form import Schedule
    from scheduler.experiment_view import History
    from scheduler.schedules import Schedules

app = typer.Typer(
    help="Measure the same again and again: named, versioned campaigns, on a schedule, with an alarm when a result gets worse.",
    no_args_is_help=True,
)

NAME = typer.Argument(help="The experiment's name.", metavar="NAME")
TITLE = typer.Argument(help="The experiment, or one version of it, such as nightly@3.", metavar="NAME[@V]")


@app.command()
def save(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="A campaign file.")],
    name: Annotated[
        str | None, typer.Option(help="What it is called.  \\[default: the campaign's name]")
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Keep a campaign file as an experiment. A version is made when it, or a model's bytes, differ from the latest."""
    from scheduler.experiment_view import version_view
    from scheduler.experiments import save as keep
    from scheduler.opening import open_store

    home: Home = ctx.obj
    with open_store(home) as store:
        version, new = keep(store, file, name=name, fetch=fetching(home))
        row = store.experiment(version.experiment)
    if as_json:
        print_json({**version_view(version).model_dump(mode="json"), "new": new})
        return
    print(f"{version.title} is {'saved' if new else 'the same as before'}.")
    if row is not None and row.due is not None and row.every_s is not None:
        print(_when(row.every_s, row.due))
        print("It runs by itself while one of these runs: sark-node serve, sark-node schedule --stay, or")
        print("sark-node experiment tick, from cron or a timer.")
    else:
        print(f"Run it: sark-node experiment run {version.experiment}")


@app.command("list")
def list_(ctx: typer.Context, as_json: Annotated[bool, JSON] = False) -> None:
    """List this home's experiments: versions, schedule, and what came of the last run."""
    from scheduler.experiment_view import experiments_view
    from scheduler.opening import open_store

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
            _local(item.due),
            _local(item.last_run),
            _finding(item.last_finding or ""),
        )
    new_console().print(table)


@app.command()
def show(ctx: typer.Context, title: Annotated[str, TITLE], as_json: Annotated[bool, JSON] = False) -> None:
    """Show a version as a campaign file, with the hashes of its models."""
    from scheduler.experiment_view import version_text, version_view
    from scheduler.experiments import find, find_version, schedule_of
    from scheduler.opening import open_store

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
    one: Annotated[str, typer.Argument(metavar="NAME@V")],
    other: Annotated[str, typer.Argument(metavar="NAME@V")],
) -> None:
    """What differs between two versions. Exit code 0: nothing, 1: something."""
    from scheduler.experiment_view import version_text
    from scheduler.experiments import find_version
    from scheduler.opening import open_store

    with open_store(ctx.obj) as store:
        left, right = find_version(store, one), find_version(store, other)
    before, after = (version_text(version, title=False).splitlines() for version in (left, right))
    lines = list(difflib.unified_diff(before, after, left.title, right.title, lineterm="", n=2))
    for line in lines:
        inner = line[1:].lstrip(" ")
        print(line[:1] + " " * (len(line) - 1 - len(inner)) + safe_text(inner, 2000))
    if lines:
        raise SystemExit(1)


@app.command()
def clone(
    ctx: typer.Context,
    source: Annotated[
        str, typer.Argument(help="A campaign of this home, or an experiment.", metavar="CAMPAIGN|NAME[@V]")
    ],
) -> None:
    """Write a past campaign, or a version, to standard output as a file that can be edited and run again."""
    from scheduler.campaign_text import campaign_text, read_spec
    from scheduler.experiment import read_title
    from scheduler.experiment_view import version_text
    from scheduler.experiments import find_version
    from scheduler.opening import open_store

    with open_store(ctx.obj) as store:
        if "@" in source or (not store.find_campaign(source) and store.experiment(read_title(source)[0])):
            text = version_text(find_version(store, source), whole=True)
        else:
            found = find_campaign(store, source)
            row, folder = store.campaign(found), store.folder(found)
            if row is None:
                raise LookupError(found)
            unknown = (
                ""
                if folder
                else "\nThe folder it was submitted from is not known: look at its models' paths."
            )
            text = campaign_text(
                read_spec(row.spec, found), folder=folder, note=f"From campaign {found}.{unknown}"
            )
    sys.stdout.write(text)


@app.command()
def run(
    ctx: typer.Context,
    title: Annotated[str, TITLE],
    gate: Annotated[list[str] | None, GATE] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Print the campaign's id and return at once.")
    ] = False,
    wait: Annotated[
        str, typer.Option(help="How long to look for a device that fits, such as 90s or 10m.")
    ] = "60s",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Run an experiment now, and hold it against the last good results. Exit code as of submit, and 1 for a regression."""
    from scheduler.cli import follow
    from scheduler.experiments import begin
    from scheduler.opening import open_store

    home: Home = ctx.obj
    gates = _answering(ctx, gate)
    with open_store(home) as store:
        started = begin(home, store, title, fetch=fetching(home), wait_s=_seconds(wait))
    if started is None:
        raise LookupError("only a scheduled run may have been begun by somebody else")
    campaign, version = started
    keep_alive = keeper(ctx, gates)
    keep_alive()
    if detach:
        if as_json:
            print_json({"campaign": campaign, "experiment": version.experiment, "version": version.version})
        else:
            print(campaign)
            print(f"  sark-node watch {campaign}", file=sys.stderr)
        return
    print(f"{safe_text(version.title)} is campaign {campaign}.", file=sys.stderr)
    ended(ctx, campaign, lambda: follow(ctx, campaign, keep_alive, csv=None, as_json=as_json))


def ended(ctx: typer.Context, campaign: str, follow: Callable[[], None]) -> None:
    """Watch a run to its end, tell what was found, and leave with 1 for a regression, else with the campaign's own exit code."""
    from scheduler.alarm import Finding
    from scheduler.experiments import alarm_lines
    from scheduler.opening import open_store

    code: object = 0
    try:
        follow()
    except SystemExit as exc:
        code = exc.code
    if code == 130:
        raise SystemExit(130)
    _step(ctx, begin=False)
    with open_store(ctx.obj) as store:
        found = store.run(campaign)
    if found is not None:
        print(f"Held against the runs before: {found.finding}.", file=sys.stderr)
        for line in alarm_lines(found):
            print(f"  {line}", file=sys.stderr)
        if found.finding == Finding.REGRESSION:
            code = 1
    raise SystemExit(code)


@app.command()
def history(
    ctx: typer.Context,
    name: Annotated[str, NAME],
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The latest so many runs.")] = 20,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Its results over time: of every model, unit and device the median of each run, and how it is beside the last good one."""
    from scheduler.experiment_view import history_view
    from scheduler.experiments import judge_ended
    from scheduler.opening import open_store

    with open_store(ctx.obj) as store:
        judge_ended(store)
        told = history_view(store, name, limit=limit)
    if as_json:
        print_json(told.model_dump(mode="json"))
        return
    if not told.runs:
        print(f"{safe_text(name)} has not run yet: sark-node experiment run {safe_text(name)}")
        return
    _show_history(told)


@app.command()
def accept(
    ctx: typer.Context,
    campaign: Annotated[str, typer.Argument(help="The campaign of a run, or the beginning of its id.")],
) -> None:
    """Take what a run measured as the new normal: later runs are held against it, though it was a regression."""
    from scheduler.experiments import judge_ended
    from scheduler.opening import open_store

    with open_store(ctx.obj) as store:
        judge_ended(store)
        found = find_campaign(store, campaign)
        if not store.accept_run(found):
            raise CampaignError(
                f"{found} is no run of an experiment that has ended",
                hint="see: sark-node experiment history NAME",
            )
    print(f"What {found} measured is good from now on.")


@app.command()
def schedule(
    ctx: typer.Context,
    name: Annotated[str, NAME],
    every: Annotated[str | None, typer.Option(help="From one run to the next, such as 6h or 1d.")] = None,
    at: Annotated[str | None, typer.Option(help="At this time of the day, in UTC, such as 03:00.")] = None,
    alarm: Annotated[
        str | None,
        typer.Option(help="By how much a result must surely be worse, such as 5%.  \\[default: 1%]"),
    ] = None,
    webhook: Annotated[
        str | None, typer.Option(help="Where a regression is told: https, or this machine.", metavar="URL")
    ] = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(help="A file with the secret that webhooks are signed with.", dir_okay=False),
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="It runs only when it is asked to.")] = False,
) -> None:
    """Have an experiment run by itself, or not any more."""
    from scheduler.experiments import find, set_schedule
    from scheduler.opening import open_store
    from scheduler.webhook import read_secret

    if off == (every is not None):
        raise CampaignError(
            "a schedule needs --every, or --off to end it", hint="such as --every 1d --at 03:00"
        )
    wanted = None if off else _schedule(every, at, alarm, webhook)
    secret = None if secret_file is None else str(secret_file.absolute())
    if secret is not None:
        read_secret(secret)
    with open_store(ctx.obj) as store:
        set_schedule(store, name, wanted, now=time.time(), secret_file=secret)
        row = find(store, name)
    if row.every_s is None or row.due is None:
        print(f"{safe_text(name)} runs only when it is asked to.")
        return
    print(_when(row.every_s, row.due))


@app.command()
def tick(ctx: typer.Context, gate: Annotated[list[str] | None, GATE] = None) -> None:
    """Run what is due, wait for it, judge it, tell it: for cron and timers. Exit code 0: nothing got worse, 1: something did.

    A run that could not be measured is no regression: it is told, and stands in the history.
    """
    from scheduler.alarm import Finding
    from scheduler.experiments import alarm_lines, why_unstarted
    from scheduler.opening import open_store

    with open_store(ctx.obj) as store:
        before = {run.campaign for row in store.experiments() for run in store.runs(row.name) if run.judged}
    begun = _step(ctx, begin=True)
    if begun:
        keep_alive = keeper(ctx, gates_of(ctx, gate))
        _await_end(ctx.obj, begun, keep_alive)
        _step(ctx, begin=False)
    worse = False
    with open_store(ctx.obj) as store:
        for row in store.experiments():
            for run in reversed(store.runs(row.name)):
                if run.judged is None or run.campaign in before:
                    continue
                print(
                    f"{safe_text(run.experiment)}@{run.version}  {run.campaign}  {run.finding}  {why_unstarted(run)}".rstrip()
                )
                for line in alarm_lines(run):
                    print(f"  {line}")
                worse = worse or run.finding == Finding.REGRESSION
    raise SystemExit(1 if worse else 0)


@app.command()
def remove(ctx: typer.Context, name: Annotated[str, NAME]) -> None:
    """Forget an experiment with its versions and history. Its campaigns and their results stay."""
    from scheduler.experiments import find
    from scheduler.opening import open_store

    with open_store(ctx.obj) as store:
        find(store, name)
        store.remove_experiment(name)
    print(f"{safe_text(name)} is forgotten.")


def submit_as(home: Home, file: Path, name: str, wait_s: float) -> str:
    """Save `file` as a version of that experiment, and store a campaign that runs it; gives its id."""
    from scheduler.experiments import begin
    from scheduler.experiments import save as keep
    from scheduler.opening import open_store

    fetch = fetching(home)
    with open_store(home) as store:
        version, _ = keep(store, file, name=name, fetch=fetch)
        started = begin(home, store, version.title, fetch=fetch, wait_s=wait_s)
    if started is None:
        raise LookupError("only a scheduled run may have been begun by somebody else")
    print(f"{safe_text(version.title)} is campaign {started[0]}.", file=sys.stderr)
    return started[0]


def add_experiment(program: typer.Typer) -> None:
    """Give the program `experiment …`."""
    program.add_typer(app, name="experiment", rich_help_panel=PANEL)


# -- the parts ------------------------------------------------------------------------------------------------------------------------


def _answering(ctx: typer.Context, gate: list[str] | None) -> tuple[str, ...]:
    from swarm.gates import answers

    gates = gates_of(ctx, gate, surely=True)
    if not gates or not answers(gates):
        raise Unreachable(
            f"no gate answers: {', '.join(gates)}" if gates else "no gate is known here",
            hint="start one on this machine: sark-node gate\nor name one: --gate /ip4/…/tcp/4101/p2p/12D3Koo…",
        )
    return gates


def _schedules(home: Home) -> Schedules:
    from scheduler.opening import open_store
    from scheduler.schedules import Schedules

    return Schedules(home, lambda: open_store(home), fetching(home))


def _step(ctx: typer.Context, *, begin: bool) -> list[str]:
    import trio

    async def once() -> list[str]:
        made = _schedules(ctx.obj)
        try:
            return await made.step(begin=begin)
        finally:
            made.close()

    return trio.run(once)


def _await_end(home: Home, campaigns: list[str], keep_alive: Callable[[], None]) -> None:
    """Until none of them is open; the scheduler process is kept alive meanwhile."""
    from scheduler.opening import open_store

    with open_store(home) as store:
        while set(campaigns) & {row.id for row in store.unfinished_campaigns()}:
            keep_alive()
            time.sleep(0.5)


def _seconds(wait: str) -> float:
    from scheduler.campaign_form import parse_duration

    try:
        return parse_duration(wait)
    except ValueError as exc:
        raise CampaignError(f"--wait: {exc}", hint="write it as 90s, 10m or 2h") from None


def _schedule(every: str | None, at: str | None, alarm: str | None, webhook: str | None) -> Schedule:
    from pydantic import ValidationError

    from scheduler.campaign_form import Schedule

    given = {"every": every, "at": at, "alarm": alarm, "webhook": webhook}
    try:
        return Schedule.model_validate({key: value for key, value in given.items() if value is not None})
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        told = first.get("ctx", {})
        raise CampaignError(
            f"--{first['loc'][0]}: {told.get('what', first['msg'])}", hint=told.get("hint", "")
        ) from None


def _when(every_s: float, due: float) -> str:
    from scheduler.experiment_view import show_every

    return f"It runs {show_every(every_s)}, next {_local_at(due)}."


def _local_at(instant: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(instant, UTC).astimezone().strftime("%Y-%m-%d %H:%M")


def _local(instant: str | None) -> str:
    from datetime import datetime

    return datetime.fromisoformat(instant).astimezone().strftime("%Y-%m-%d %H:%M") if instant else ""


_STYLES = {
    "regression": "red",
    "slower": "red",
    "more-memory": "red",
    "failed": "red",
    "faster": "green",
    "not-started": "red",
}


def _finding(word: str) -> Text:
    return Text(word, style=_STYLES.get(word, ""))


def _show_history(told: History) -> None:
    console = new_console()
    for cell in told.cells:
        threads = "" if cell.threads is None else f", {count(cell.threads, 'thread')}"
        mark = "  [simulation]" if cell.simulated else ""
        console.print(
            Text(
                f"{safe_text(cell.model, 60)} × {safe_text(cell.unit, 60)}{threads} on {safe_text(cell.device, 60) or 'no device'}{mark}",
                style="bold",
            ),
            soft_wrap=True,
        )
        table = Table(box=None, padding=(0, 2, 0, 2), header_style="dim")
        for head in (
            "begun",
            "version",
            "campaign",
            "median ms",
            "95 %",
            "memory MB",
            "verdict",
            "finding",
            "ratio",
        ):
            table.add_column(
                head, justify="right" if head in ("median ms", "95 %", "memory MB", "ratio") else "left"
            )
        for point in cell.points:
            table.add_row(
                _local(point.begun),
                f"@{point.version}",
                point.campaign,
                _number(point.median_ms),
                ""
                if point.low_ms is None or point.high_ms is None
                else f"{point.low_ms:.4g} – {point.high_ms:.4g}",
                "" if point.memory_mb is None else f"{point.memory_mb:.1f}",
                Text(safe_text(point.verdict or point.status, 40)),
                _finding(str(point.finding)),
                "" if point.ratio is None else f"{point.ratio:.3f}",
            )
        console.print(table)
    for item in told.runs:
        if item.why:
            console.print(
                Text(f"{_local(item.begun)}  {item.finding}: {safe_text(item.why, 300)}"), soft_wrap=True
            )
        if item.webhook not in ("", "sent", "due", "sending"):
            console.print(
                Text(f"{_local(item.begun)}  webhook: {safe_text(item.webhook, 300)}"), soft_wrap=True
            )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


__all__ = ["add_experiment", "app", "ended"]
