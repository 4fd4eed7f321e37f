"""Commands that run experiments and show their results over time: experiment run, tick, history, accept."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from protocol.errors import CampaignError
from scheduler.cli import completion
from scheduler.cli.options import (
    DETACH,
    GATE,
    JSON,
    WAIT,
    answering_gates,
    duration_option,
    fetching,
    follow,
    gates_of,
    keeper,
)
from swarm.base.home import Home
from swarm.base.screen import new_console, print_json
from swarm.base.text import count, safe_text

if TYPE_CHECKING:
    from scheduler.experiments.view import History
    from scheduler.store.rows import VersionRow
    from scheduler.store.store import Store

NAME = typer.Argument(help="The experiment's name.", metavar="NAME", autocompletion=completion.experiments)
TITLE = typer.Argument(
    help="The experiment, or one of its versions, such as nightly@3.",
    metavar="NAME[@V]",
    autocompletion=completion.experiments,
)
POLL_S: Final = 0.5
_STYLES: Final = {
    "regression": "red",
    "slower": "red",
    "more-memory": "red",
    "failed": "red",
    "faster": "green",
    "not-started": "red",
}


def run(
    ctx: typer.Context,
    title: Annotated[str, TITLE],
    gate: Annotated[list[str] | None, GATE] = None,
    detach: Annotated[bool, DETACH] = False,
    wait: Annotated[str, WAIT] = "60s",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Run an experiment now, and compare it with the last good run. Exit code as of submit, and 1 for a regression."""
    from scheduler.store.store import open_store

    home: Home = ctx.obj
    gates = answering_gates(ctx, gate)
    with open_store(home) as store:
        campaign, version = _begin(home, store, title, duration_option("--wait", wait))
    keep_alive = keeper(ctx, gates)
    keep_alive()
    if detach:
        if as_json:
            print_json({"campaign": campaign, "experiment": version.experiment, "version": version.version})
        else:
            print(campaign)
            print(f"  sark-node watch {campaign}", file=sys.stderr)
        return
    print(f"{safe_text(version.title)} runs as campaign {campaign}.", file=sys.stderr)
    finish_run(ctx, campaign, lambda: follow(ctx, campaign, keep_alive, csv=None, as_json=as_json))


def submit_version(home: Home, file: Path, name: str, wait_s: float) -> str:
    """Save `file` as a version of the experiment `name` and run it; gives the campaign's id."""
    from scheduler.experiments.service import save
    from scheduler.store.store import open_store

    with open_store(home) as store:
        version, _ = save(store, file, name=name, fetch=fetching(home))
        campaign, _ = _begin(home, store, version.title, wait_s)
    print(f"{safe_text(version.title)} runs as campaign {campaign}.", file=sys.stderr)
    return campaign


def _begin(home: Home, store: Store, title: str, wait_s: float) -> tuple[str, VersionRow]:
    from scheduler.experiments.service import begin

    started = begin(home, store, title, fetch=fetching(home), wait_s=wait_s)
    assert started is not None, "only scheduled runs can be started by another process"
    return started


def finish_run(ctx: typer.Context, campaign: str, watch: Callable[[], None]) -> None:
    """Watch a run to its end, print the finding, and exit with 1 for a regression, else with the campaign's exit code."""
    from results.analysis.regression import RegressionFinding
    from scheduler.experiments.judge import alarm_lines
    from scheduler.store.store import open_store

    code: object = 0
    try:
        watch()
    except SystemExit as exc:
        code = exc.code
    if code == 130:
        raise SystemExit(130)
    _step_schedules(ctx, begin=False)
    with open_store(ctx.obj) as store:
        finished = store.experiments.run(campaign)
    if finished is not None:
        print(f"Compared with earlier runs: {finished.finding}.", file=sys.stderr)
        for line in alarm_lines(finished):
            print(f"  {line}", file=sys.stderr)
        if finished.finding == RegressionFinding.REGRESSION:
            code = 1
    raise SystemExit(code)


def tick(ctx: typer.Context, gate: Annotated[list[str] | None, GATE] = None) -> None:
    """Run the experiments that are due, wait for them, and report regressions. For cron and timers.

    Exit code 0: no regression, 1: at least one. A run that could not be measured is reported, but is no regression.
    """
    from results.analysis.regression import RegressionFinding
    from scheduler.experiments.judge import alarm_lines, why_not_started
    from scheduler.store.store import open_store

    with open_store(ctx.obj) as store:
        before = {
            run.campaign
            for row in store.experiments.all()
            for run in store.experiments.runs(row.name)
            if run.judged
        }
    started = _step_schedules(ctx, begin=True)
    if started:
        keep_alive = keeper(ctx, gates_of(ctx, gate))
        with open_store(ctx.obj) as store:
            while set(started) & {row.id for row in store.campaigns.unfinished()}:
                keep_alive()
                time.sleep(POLL_S)
        _step_schedules(ctx, begin=False)
    regression = False
    with open_store(ctx.obj) as store:
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


def _step_schedules(ctx: typer.Context, *, begin: bool) -> list[str]:
    """One step of the schedules: judge ended runs, send webhooks, and with `begin` start what is due; gives the new campaigns."""
    import trio

    from scheduler.experiments.schedule import Schedules
    from scheduler.store.store import open_store

    home: Home = ctx.obj

    async def step() -> list[str]:
        schedules = Schedules(home, lambda: open_store(home), fetching(home))
        try:
            return await schedules.step(begin=begin)
        finally:
            schedules.close()

    return trio.run(step)


def history(
    ctx: typer.Context,
    name: Annotated[str, NAME],
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of runs to show.")] = 20,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show an experiment's results over time: medians of each run by model, unit and device, compared with the last good run."""
    from scheduler.experiments.judge import judge_ended
    from scheduler.experiments.view import history_view
    from scheduler.store.store import open_store

    with open_store(ctx.obj) as store:
        judge_ended(store)
        view = history_view(store, name, limit=limit)
    if as_json:
        print_json(view.model_dump(mode="json"))
    elif view.runs:
        show_history(view)
    else:
        print(f"{safe_text(name)} has not run yet. Run it: sark-node experiment run {safe_text(name)}")


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
    from scheduler.store.store import open_store

    with open_store(ctx.obj) as store:
        judge_ended(store)
        campaign_id = store.campaigns.resolve(campaign)
        if not store.experiments.accept_run(campaign_id):
            raise CampaignError(
                f"{campaign_id} is not an ended run of an experiment",
                hint="list runs: sark-node experiment history NAME",
            )
    print(f"{campaign_id} is the new baseline.")


def show_history(history: History) -> None:
    """Print a table for each model, unit and device, latest run first."""
    console = new_console()
    for cell in history.cells:
        threads = "" if cell.threads is None else f", {count(cell.threads, 'thread')}"
        threads += "" if cell.batch is None else f", batch {cell.batch}"
        mark = "  [simulation]" if cell.simulated else ""
        where = f"{safe_text(cell.unit, 60)}{threads} on {safe_text(cell.device, 60) or 'no device'}{mark}"
        console.print(Text(f"{safe_text(cell.model, 60)} × {where}", style="bold"), soft_wrap=True)
        table = Table(box=None, padding=(0, 2, 0, 2), header_style="dim")
        for column in ("started", "version", "campaign"):
            table.add_column(column)
        for column in ("median ms", "95 %", "memory MB"):
            table.add_column(column, justify="right")
        for column in ("verdict", "finding"):
            table.add_column(column)
        table.add_column("ratio", justify="right")
        for point in cell.points:
            interval = (
                None if point.low_ms is None or point.high_ms is None else (point.low_ms, point.high_ms)
            )
            table.add_row(
                local_time(point.begun),
                f"@{point.version}",
                point.campaign,
                "" if point.median_ms is None else f"{point.median_ms:.4g}",
                "" if interval is None else f"{interval[0]:.4g} – {interval[1]:.4g}",
                "" if point.memory_mb is None else f"{point.memory_mb:.1f}",
                Text(safe_text(point.verdict or point.status, 40)),
                finding_text(str(point.finding)),
                "" if point.ratio is None else f"{point.ratio:.3f}",
            )
        console.print(table)
    for run in history.runs:
        notes = [f"{run.finding}: {safe_text(run.why, 300)}"] if run.why else []
        if run.webhook not in ("", "sent", "due", "sending"):
            notes.append(f"webhook: {safe_text(run.webhook, 300)}")
        for note in notes:
            console.print(Text(f"{local_time(run.begun)}  {note}"), soft_wrap=True)


def local_time(instant: str | float | None) -> str:
    """`2026-11-22 10:00` in local time, from ISO 8601 or seconds since 1970; '' for None."""
    if instant is None:
        return ""
    at = datetime.fromisoformat(instant) if isinstance(instant, str) else datetime.fromtimestamp(instant, UTC)
    return at.astimezone().strftime("%Y-%m-%d %H:%M")


def finding_text(finding: str) -> Text:
    """A finding in its colour."""
    return Text(finding, style=_STYLES.get(finding, ""))
