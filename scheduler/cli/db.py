"""Commands for the store: db info, migrate, backup, restore, export, import, prune."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from protocol.errors import CampaignError, ResourceError
from scheduler.cli.options import GENERAL, JSON
from swarm.base.home import Home
from swarm.base.screen import new_console, print_json
from swarm.base.text import count, safe_text
from swarm.base.units import DurationError, parse_age

db = typer.Typer(no_args_is_help=True, help="Manage the store of campaigns and results.")

FILE = typer.Argument(help="The backup or export file.", dir_okay=False)


@db.command()
def info(ctx: typer.Context, as_json: Annotated[bool, JSON] = False) -> None:
    """Show the store's location, engine, size and contents."""
    from scheduler.store.store import open_store, store_settings

    with open_store(ctx.obj) as store:
        facts = store.describe() | {"keep": store_settings(ctx.obj).keep}
    if as_json:
        print_json(facts)
        return
    for line in info_lines(facts):
        new_console().print(line, markup=False, highlight=False, soft_wrap=True)


def info_lines(facts: dict[str, Any]) -> Iterator[str]:
    """Text of `db info`."""
    rows: dict[str, int] = facts["rows"]
    yield f"store      {safe_text(facts['store'], 400)}"
    if facts.get("schema"):
        yield f"schema     {facts['schema']}"
    yield f"engine     {safe_text(facts['engine'], 100)}, schema version {facts['version']}"
    free = f", {facts['free_bytes'] / 1e6:,.1f} MB of it free" if facts.get("free_bytes") else ""
    yield f"size       {facts['bytes'] / 1e6:,.1f} MB{free}"
    yield f"campaigns  {rows['campaigns']:,}, {facts['open_campaigns']:,} open"
    yield f"tasks      {rows['tasks']:,}, {rows['results']:,} ended"
    yield f"records    {rows['records']:,}"
    yield f"events     {rows['events']:,}"
    stored = (
        f"{facts['keep']} after the campaign's end"
        if facts["keep"]
        else "forever (the setting keep in [scheduler] of config.toml)"
    )
    yield f"kept       {stored}"
    if facts.get("flushes") is False:
        yield "warning    fsync is off on the server: a power failure may lose data"


@db.command()
def migrate(ctx: typer.Context) -> None:
    """Upgrade the store's schema. Every command does this by itself."""
    from scheduler.store.database import backend_of
    from scheduler.store.schema import MIGRATIONS
    from scheduler.store.store import has_store, open_store, store_location

    home: Home = ctx.obj
    before = 0
    if has_store(home):
        backend = backend_of(store_location(home))
        with backend.connect() as c, backend.errors():
            before = backend.version(c)
    with open_store(home) as store:
        location = store.location
    if before == len(MIGRATIONS):
        print(f"{location} has schema version {before}, the current one.")
    else:
        print(
            f"{location} was upgraded from schema version {before} to {len(MIGRATIONS)}."
            if before
            else f"{location} was created."
        )


@db.command()
def backup(ctx: typer.Context, file: Annotated[Path, FILE]) -> None:
    """Back up the whole store to the SQLite file FILE while campaigns run."""
    print(f"{_write(ctx.obj, file)}, without keys and models of open campaigns")


@db.command()
def restore(
    ctx: typer.Context,
    file: Annotated[Path, FILE],
    replace: Annotated[
        bool, typer.Option("--replace", help="Delete the current contents of the store.")
    ] = False,
) -> None:
    """Restore the store from a file of `db backup` or `db export`, completely or not at all."""
    from scheduler.store import archive
    from scheduler.store.store import open_store
    from scheduler.submit.daemon import is_running

    home: Home = ctx.obj
    with open_store(home) as store:
        if is_running(home):
            raise ResourceError(
                "a backup cannot be restored while this home's scheduler runs",
                hint="wait until its campaigns have ended, or cancel them",
            )
        store.claim()
        campaigns = store.describe()["rows"]["campaigns"]
        if campaigns and not replace:
            raise CampaignError(
                f"{store.location} holds {count(campaigns, 'campaign')}, which restoring would delete",
                hint="replace them with --replace, or add to them with: sark-node db import FILE",
            )
        with archive.open_copy(file) as source:
            restored = archive.replace(store, source)
    print(f"restored {count(restored, 'campaign')} from {file}")


@db.command("export")
def export(ctx: typer.Context, file: Annotated[Path, FILE]) -> None:
    """Back up the whole store to FILE as a gzipped SQLite file, for any kind of store."""
    print(_write(ctx.obj, file, packed=True))


@db.command("import")
def import_(
    ctx: typer.Context,
    file: Annotated[Path, FILE],
    with_open: Annotated[
        bool,
        typer.Option(
            "--open",
            help="Also import unfinished campaigns and continue them here. No other home may run them any more.",
        ),
    ] = False,
) -> None:
    """Import the campaigns of FILE that this store does not have, with results, signatures and events."""
    from scheduler.store.archive import load, open_copy
    from scheduler.store.store import open_store

    with open_store(ctx.obj) as store, open_copy(file) as source:
        loaded = load(store, source, with_open=with_open)
    print(f"imported {count(loaded.new, 'campaign')}; {loaded.existing} already existed")
    if loaded.open:
        print(
            f"{count(loaded.open, 'unfinished campaign')} left out; to continue them here, if no other home does, add --open"
        )


@db.command()
def prune(
    ctx: typer.Context,
    older_than: Annotated[
        str,
        typer.Option(
            help="Time since the campaign's end, such as 90d.  \\[default: the setting `keep`]",
            metavar="DURATION",
        ),
    ] = "",
    keep: Annotated[int, typer.Option(min=0, help="Keep at least this many of the latest campaigns.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the campaigns.")] = False,
) -> None:
    """Delete old campaigns with their results and records. Unfinished campaigns and written files remain."""
    from scheduler.store.store import delete_old, open_store, store_settings

    age = older_than or store_settings(ctx.obj).keep
    if not age:
        raise CampaignError(
            "prune requires --older-than",
            hint="such as --older-than 90d, or set keep in [scheduler] of config.toml",
        )
    try:
        age_s = parse_age(age)
    except DurationError as exc:
        raise CampaignError(f"--older-than: {safe_text(exc.what)}", hint=exc.hint) from None
    with open_store(ctx.obj) as store:
        if dry_run:
            for campaign in store.campaigns.old(age_s, keep=keep):
                print(f"{campaign.id}  {safe_text(campaign.name, 60)}")
            return
        deleted = delete_old(store, age_s, keep=keep)
    print(f"deleted {count(len(deleted), 'campaign')}")


def _write(home: Home, file: Path, *, packed: bool = False) -> str:
    from scheduler.store.archive import write_copy
    from scheduler.store.store import open_store

    if file.exists():
        raise CampaignError(f"{file} already exists", hint="name another file, or remove it")
    with open_store(home) as store:
        write_copy(file, store, packed=packed)
        return f"wrote {count(store.describe()['rows']['campaigns'], 'campaign')} to {file}"


app = typer.Typer()
app.add_typer(db, name="db", rich_help_panel=GENERAL)
