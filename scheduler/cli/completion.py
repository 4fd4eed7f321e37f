"""Shell completion for names of this home: campaigns, tasks, devices, experiments, models, units.

It runs at each Tab, so it is quick and silent: it reads the store's file with the standard library, and offers nothing if the store is
missing, busy, or on a server. It creates nothing and uses no network.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import typer

from swarm.base.home import Home
from swarm.base.text import is_safe, safe_text

MAX_WORDS: Final = 200
TIMEOUT_S: Final = 0.2
"""Seconds to wait for a store that another process is writing."""

SHELL_VARIABLE: Final = "_SARK_NODE_COMPLETE"
"""The environment variable that names the shell."""
_SPECIAL: Final = re.compile(r"([^\w@%+=:,./-])")
"""Characters that need a backslash in bash; other shells escape by themselves."""

Word = tuple[str, str]
"""A word and its description."""


def home_of(ctx: typer.Context) -> Home:
    """The home of the command line so far, which no command has read yet."""
    folder = ctx.find_root().params.get("home") or os.environ.get("SARK_HOME")
    return Home.at(Path(folder) if folder else None)


class Offers(NamedTuple):
    """Completion for commands of the other roles: the program passes it as `ctx.obj` until a command runs."""

    home: Callable[[typer.Context], Home]
    devices: Callable[[typer.Context, str], list[Word]]


def campaigns(ctx: typer.Context, incomplete: str) -> list[Word]:
    """Campaign ids, newest first; after `ID/`, its tasks."""
    store = home_of(ctx).store
    campaign, slash, _ = incomplete.partition("/")
    if slash:
        rows = _query(store, "SELECT id, model FROM tasks WHERE campaign = ? ORDER BY n", campaign)
    else:
        rows = _query(store, "SELECT id, name FROM campaigns ORDER BY created DESC")
    return offered(rows, incomplete)


def experiments(ctx: typer.Context, incomplete: str) -> list[Word]:
    """Names of experiments; after `NAME@`, its versions."""
    store = home_of(ctx).store
    name, at, _ = incomplete.partition("@")
    if at:
        sql = "SELECT experiment || '@' || version, '' FROM experiment_versions WHERE experiment = ? ORDER BY version DESC"
        return offered(_query(store, sql, name), incomplete)
    return offered(_query(store, "SELECT name, '' FROM experiments ORDER BY name"), incomplete)


def campaigns_or_experiments(ctx: typer.Context, incomplete: str) -> list[Word]:
    """The names of campaigns and of experiments that begin with `incomplete`."""
    return [*campaigns(ctx, incomplete), *experiments(ctx, incomplete)]


def devices(ctx: typer.Context, incomplete: str) -> list[Word]:
    """Names of known devices, latest first, or their peer ids if no name matches."""
    rows = _query(home_of(ctx).store, "SELECT device, peer FROM workers ORDER BY seen DESC")
    names = offered(((name, f"…{peer[-8:]}") for name, peer in rows), incomplete)
    return names or offered(((peer, name) for name, peer in rows), incomplete)


def models(ctx: typer.Context, incomplete: str) -> list[Word]:
    """Names of the models of this home's campaigns."""
    return offered(
        _query(home_of(ctx).store, "SELECT DISTINCT name, '' FROM models ORDER BY name"), incomplete
    )


def units(ctx: typer.Context, incomplete: str) -> list[Word]:
    """Compute units by their public names."""
    from scheduler.campaign.fields import UNITS  # imports pydantic

    return offered(((unit, "") for unit in UNITS), incomplete)


def sides(ctx: typer.Context, incomplete: str) -> list[Word]:
    """Campaigns and tasks, or devices with `--by device`."""
    return devices(ctx, incomplete) if ctx.params.get("by") == "device" else campaigns(ctx, incomplete)


def bases(ctx: typer.Context, incomplete: str) -> list[Word]:
    """Devices, units and models: bases of a matrix."""
    return [*devices(ctx, incomplete), *units(ctx, incomplete), *models(ctx, incomplete)]


def offered(
    candidates: Iterable[Word], incomplete: str, environment: Mapping[str, str] = os.environ
) -> list[Word]:
    """The words that start with `incomplete`, escaped for the shell. Unsafe words are left out."""
    in_bash = environment.get(SHELL_VARIABLE) == "complete_bash"
    words = {
        _SPECIAL.sub(r"\\\1", word) if in_bash else word: safe_text(what, 60)
        for word, what in candidates
        if word.startswith(incomplete) and is_safe(word)
    }
    return list(words.items())[:MAX_WORDS]


def _query(store: Path, sql: str, *values: str) -> list[Word]:
    """Rows of the store's file; none if it cannot be read at once."""
    import sqlite3  # each command passes `OFFERS` on; few query the store

    with (
        contextlib.suppress(sqlite3.Error, OSError, ValueError),
        contextlib.closing(
            sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True, timeout=TIMEOUT_S)
        ) as db,
    ):
        return [(str(word), str(what)) for word, what in db.execute(f"{sql} LIMIT 5000", values)]
    return []


OFFERS: Final = Offers(home_of, devices)
