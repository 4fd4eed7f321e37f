"""What a shell offers where a command takes a name of this home: campaigns, tasks, devices, experiments, models, units.

It is asked at each press of Tab, so it has to be quick and silent: the store's file is read with the standard library alone, and only
read; a store that is not there, is in use, or is on a server offers nothing. Nothing is made, and nobody on the network is asked.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import typer

from swarm.base.home import Home
from swarm.base.text import is_safe, safe_text

MOST: Final = 200
"""Words offered at a time, the latest."""
BUSY_S: Final = 0.2
"""How long a store that somebody writes to is waited for."""

ASKED: Final = "_SARK_NODE_COMPLETE"
"""In the environment: for which shell completion is asked."""
_ODD: Final = re.compile(r"([^\w@%+=:,./-])")
"""What bash wants a backslash before; the other shells do that themselves."""

Word = tuple[str, str]
"""What is typed, and what it is."""


def home_of(ctx: typer.Context) -> Home:
    """The home that the command line so far speaks of: no command has run, so nobody else has read it."""
    given = ctx.find_root().params.get("home") or os.environ.get("SARK_HOME")
    return Home.at(Path(given) if given else None)


class Offers(NamedTuple):
    """What commands of the other roles complete with: the program gives it as `ctx.obj` until a command runs."""

    home: Callable[[typer.Context], Home]
    devices: Callable[[typer.Context, str], list[Word]]


def campaigns(ctx: typer.Context, incomplete: str) -> list[Word]:
    """Ids of this home's campaigns, the latest first; with `/` after one, its tasks."""
    store = home_of(ctx).store
    campaign, slash, _ = incomplete.partition("/")
    if slash:
        found = _ask(store, "SELECT id, model FROM tasks WHERE campaign = ? ORDER BY n", campaign)
    else:
        found = _ask(store, "SELECT id, name FROM campaigns ORDER BY created DESC")
    return offered(found, incomplete)


def experiments(ctx: typer.Context, incomplete: str) -> list[Word]:
    """Names of experiments; with `@` after one, its versions."""
    store = home_of(ctx).store
    name, at, _ = incomplete.partition("@")
    if at:
        asked = "SELECT experiment || '@' || version, '' FROM experiment_versions WHERE experiment = ? ORDER BY version DESC"
        return offered(_ask(store, asked, name), incomplete)
    return offered(_ask(store, "SELECT name, '' FROM experiments ORDER BY name"), incomplete)


def campaigns_or_experiments(ctx: typer.Context, incomplete: str) -> list[Word]:
    """Both."""
    return [*campaigns(ctx, incomplete), *experiments(ctx, incomplete)]


def devices(ctx: typer.Context, incomplete: str) -> list[Word]:
    """Names of the devices that this home has spoken with, the latest first, and their peer ids once one is begun."""
    found = _ask(home_of(ctx).store, "SELECT device, peer FROM workers ORDER BY seen DESC")
    names = offered(((name, f"…{peer[-8:]}") for name, peer in found), incomplete)
    return names or offered(((peer, name) for name, peer in found), incomplete)


def models(ctx: typer.Context, incomplete: str) -> list[Word]:
    """Names of the models of this home's campaigns."""
    return offered(_ask(home_of(ctx).store, "SELECT DISTINCT name, '' FROM models ORDER BY name"), incomplete)


def units(ctx: typer.Context, incomplete: str) -> list[Word]:
    """Compute units by their public names."""
    from scheduler.campaign.fields import UNITS  # pydantic's second is paid by who asks for units

    return offered(((unit, "") for unit in UNITS), incomplete)


def sides(ctx: typer.Context, incomplete: str) -> list[Word]:
    """What can be compared: campaigns, their tasks; devices with `--by device`."""
    return devices(ctx, incomplete) if ctx.params.get("by") == "device" else campaigns(ctx, incomplete)


def bases(ctx: typer.Context, incomplete: str) -> list[Word]:
    """What a matrix can be held against."""
    return [*devices(ctx, incomplete), *units(ctx, incomplete), *models(ctx, incomplete)]


def offered(
    found: Iterable[Word], incomplete: str, environment: Mapping[str, str] = os.environ
) -> list[Word]:
    """Those that begin so, as they are to be typed. Words that a terminal could not show harmlessly are left out."""
    in_bash = environment.get(ASKED) == "complete_bash"
    words = {
        _ODD.sub(r"\\\1", word) if in_bash else word: safe_text(what, 60)
        for word, what in found
        if word.startswith(incomplete) and is_safe(word)
    }
    return list(words.items())[:MOST]


def _ask(store: Path, question: str, *values: str) -> list[Word]:
    """Rows of the store's file; none where it cannot be read at once."""
    with (
        contextlib.suppress(sqlite3.Error, OSError, ValueError),
        contextlib.closing(
            sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_S)
        ) as db,
    ):
        return [(str(word), str(what)) for word, what in db.execute(f"{question} LIMIT 5000", values)]
    return []


OFFERS: Final = Offers(home_of, devices)
