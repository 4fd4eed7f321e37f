"""What somebody types to run an experiment, and to see what came of it over time: experiment run, history, accept."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from protocol.errors import CampaignError, Unreachable
from scheduler.cli import completion
from scheduler.cli.experiment_options import NAME, TITLE, finding, local, step
from scheduler.cli.options import (
    GATE,
    JSON,
    duration_option,
    fetching,
    gates_of,
    keeper,
    new_console,
    print_json,
)
from swarm.base.home import Home
from swarm.base.text import count, safe_text

if TYPE_CHECKING:
    from scheduler.experiments.view import History


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
    from scheduler.cli.options import follow
    from scheduler.experiments.service import begin
    from scheduler.store.opening import open_store

    home: Home = ctx.obj
    gates = _answering(ctx, gate)
    with open_store(home) as store:
        started = begin(home, store, title, fetch=fetching(home), wait_s=duration_option("--wait", wait))
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
    from results.analysis.regression import RegressionFinding
    from scheduler.experiments.judge import alarm_lines
    from scheduler.store.opening import open_store

    code: object = 0
    try:
        follow()
    except SystemExit as exc:
        code = exc.code
    if code == 130:
        raise SystemExit(130)
    step(ctx, begin=False)
    with open_store(ctx.obj) as store:
        found = store.experiments.run(campaign)
    if found is not None:
        print(f"Held against the runs before: {found.finding}.", file=sys.stderr)
        for line in alarm_lines(found):
            print(f"  {line}", file=sys.stderr)
        if found.finding == RegressionFinding.REGRESSION:
            code = 1
    raise SystemExit(code)


def history(
    ctx: typer.Context,
    name: Annotated[str, NAME],
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The latest so many runs.")] = 20,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Its results over time: of every model, unit and device the median of each run, and how it is beside the last good one."""
    from scheduler.experiments.judge import judge_ended
    from scheduler.experiments.view import history_view
    from scheduler.store.opening import open_store

    with open_store(ctx.obj) as store:
        judge_ended(store)
        told = history_view(store, name, limit=limit)
    if as_json:
        print_json(told.model_dump(mode="json"))
        return
    if not told.runs:
        print(f"{safe_text(name)} has not run yet: sark-node experiment run {safe_text(name)}")
        return
    show_history(told)


def accept(
    ctx: typer.Context,
    campaign: Annotated[
        str,
        typer.Argument(
            help="The campaign of a run, or the beginning of its id.", autocompletion=completion.campaigns
        ),
    ],
) -> None:
    """Take what a run measured as the new normal: later runs are held against it, though it was a regression."""
    from scheduler.experiments.judge import judge_ended
    from scheduler.store.opening import open_store

    with open_store(ctx.obj) as store:
        judge_ended(store)
        found = store.campaigns.resolve(campaign)
        if not store.experiments.accept_run(found):
            raise CampaignError(
                f"{found} is no run of an experiment that has ended",
                hint="see: sark-node experiment history NAME",
            )
    print(f"What {found} measured is good from now on.")


def submit_as(home: Home, file: Path, name: str, wait_s: float) -> str:
    """Save `file` as a version of that experiment, and store a campaign that runs it; gives its id."""
    from scheduler.experiments.service import begin
    from scheduler.experiments.service import save as keep
    from scheduler.store.opening import open_store

    fetch = fetching(home)
    with open_store(home) as store:
        version, _ = keep(store, file, name=name, fetch=fetch)
        started = begin(home, store, version.title, fetch=fetch, wait_s=wait_s)
    if started is None:
        raise LookupError("only a scheduled run may have been begun by somebody else")
    print(f"{safe_text(version.title)} is campaign {started[0]}.", file=sys.stderr)
    return started[0]


# -- the parts ------------------------------------------------------------------------------------------------------------------------


def _answering(ctx: typer.Context, gate: list[str] | None) -> tuple[str, ...]:
    from swarm.join.known_gates import any_answers

    gates = gates_of(ctx, gate, surely=True)
    if not gates or not any_answers(gates):
        raise Unreachable(
            f"no gate answers: {', '.join(gates)}" if gates else "no gate is known here",
            hint="start one on this machine: sark-node gate\nor name one: --gate /ip4/…/tcp/4101/p2p/12D3Koo…",
        )
    return gates


def show_history(told: History) -> None:
    """A table for each cell, the latest run first."""
    console = new_console()
    for cell in told.cells:
        threads = "" if cell.threads is None else f", {count(cell.threads, 'thread')}"
        threads += "" if cell.batch is None else f", batch {cell.batch}"
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
                local(point.begun),
                f"@{point.version}",
                point.campaign,
                _number(point.median_ms),
                ""
                if point.low_ms is None or point.high_ms is None
                else f"{point.low_ms:.4g} – {point.high_ms:.4g}",
                "" if point.memory_mb is None else f"{point.memory_mb:.1f}",
                Text(safe_text(point.verdict or point.status, 40)),
                finding(str(point.finding)),
                "" if point.ratio is None else f"{point.ratio:.3f}",
            )
        console.print(table)
    for item in told.runs:
        if item.why:
            console.print(
                Text(f"{local(item.begun)}  {item.finding}: {safe_text(item.why, 300)}"), soft_wrap=True
            )
        if item.webhook not in ("", "sent", "due", "sending"):
            console.print(
                Text(f"{local(item.begun)}  webhook: {safe_text(item.webhook, 300)}"), soft_wrap=True
            )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
