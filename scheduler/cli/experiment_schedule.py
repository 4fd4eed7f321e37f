"""What somebody types to have experiments run by themselves: experiment schedule, tick."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protocol.errors import CampaignError
from scheduler.cli.experiment_options import NAME, step, when
from scheduler.cli.options import GATE, gates_of, keeper
from swarm.base.home import Home
from swarm.base.text import safe_text

if TYPE_CHECKING:
    from scheduler.campaign.model import Schedule


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
    from scheduler.experiments.schedule import read_secret
    from scheduler.experiments.service import find, set_schedule
    from scheduler.store.opening import open_store

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
    print(when(row.every_s, row.due))


def tick(ctx: typer.Context, gate: Annotated[list[str] | None, GATE] = None) -> None:
    """Run what is due, wait for it, judge it, tell it: for cron and timers. Exit code 0: nothing got worse, 1: something did.

    A run that could not be measured is no regression: it is told, and stands in the history.
    """
    from results.analysis.regression import RegressionFinding
    from scheduler.experiments.judge import alarm_lines, why_not_started
    from scheduler.store.opening import open_store

    with open_store(ctx.obj) as store:
        before = {
            run.campaign
            for row in store.experiments.all()
            for run in store.experiments.runs(row.name)
            if run.judged
        }
    begun = step(ctx, begin=True)
    if begun:
        keep_alive = keeper(ctx, gates_of(ctx, gate))
        _await_end(ctx.obj, begun, keep_alive)
        step(ctx, begin=False)
    worse = False
    with open_store(ctx.obj) as store:
        for row in store.experiments.all():
            for run in reversed(store.experiments.runs(row.name)):
                if run.judged is None or run.campaign in before:
                    continue
                print(
                    f"{safe_text(run.experiment)}@{run.version}  {run.campaign}  {run.finding}  {why_not_started(run)}".rstrip()
                )
                for line in alarm_lines(run):
                    print(f"  {line}")
                worse = worse or run.finding == RegressionFinding.REGRESSION
    raise SystemExit(1 if worse else 0)


# -- the parts ------------------------------------------------------------------------------------------------------------------------


def _await_end(home: Home, campaigns: list[str], keep_alive: Callable[[], None]) -> None:
    """Until none of them is open; the scheduler process is kept alive meanwhile."""
    from scheduler.store.opening import open_store

    with open_store(home) as store:
        while set(campaigns) & {row.id for row in store.campaigns.unfinished()}:
            keep_alive()
            time.sleep(0.5)


def _schedule(every: str | None, at: str | None, alarm: str | None, webhook: str | None) -> Schedule:
    from pydantic import ValidationError

    from scheduler.campaign.model import Schedule

    given = {"every": every, "at": at, "alarm": alarm, "webhook": webhook}
    try:
        return Schedule.model_validate({key: value for key, value in given.items() if value is not None})
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        told = first.get("ctx", {})
        raise CampaignError(
            f"--{first['loc'][0]}: {told.get('what', first['msg'])}", hint=told.get("hint", "")
        ) from None
