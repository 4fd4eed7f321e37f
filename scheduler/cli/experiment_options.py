"""What the commands of experiments share: words in a table, and one step of what is due."""

from __future__ import annotations

import typer
from rich.text import Text

from scheduler.cli import completion
from scheduler.cli.options import fetching
from swarm.base.home import Home

NAME = typer.Argument(help="The experiment's name.", metavar="NAME", autocompletion=completion.experiments)
TITLE = typer.Argument(
    help="The experiment, or one version of it, such as nightly@3.",
    metavar="NAME[@V]",
    autocompletion=completion.experiments,
)


def step(ctx: typer.Context, *, begin: bool) -> list[str]:
    import trio

    from scheduler.experiments.schedule import Schedules
    from scheduler.store.opening import open_store

    home: Home = ctx.obj

    async def once() -> list[str]:
        made = Schedules(home, lambda: open_store(home), fetching(home))
        try:
            return await made.step(begin=begin)
        finally:
            made.close()

    return trio.run(once)


def when(every_s: float, due: float) -> str:
    from scheduler.experiments.view import show_every

    return f"It runs {show_every(every_s)}, next {local_at(due)}."


def local_at(instant: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(instant, UTC).astimezone().strftime("%Y-%m-%d %H:%M")


def local(instant: str | None) -> str:
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


def finding(word: str) -> Text:
    return Text(word, style=_STYLES.get(word, ""))
