"""Commands for the store: db info, migrate, backup, restore, export, import, prune."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from protocol.errors import CampaignError, ResourceError
from scheduler.cli.options import GENERAL, AsJson, duration_option, opened, refuse_existing
from scheduler.output.terminal import print_lines
from swarm.base.home import Home
from swarm.base.screen import print_json
from swarm.base.text import count, safe_text
from swarm.base.units import YEAR_S, parse_age, show_duration

db = typer.Typer(no_args_is_help=True, help="Manage the store of campaigns and results.")

BackupFile = Annotated[Path, typer.Argument(help="The backup or export file.", dir_okay=False)]


@db.command()
def info(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show the store's location, engine, size and contents."""
    from scheduler.store.retention import clock_ahead_s
    from scheduler.store.store import store_settings

    home: Home = ctx.obj
    with opened(ctx) as store:
        keep = store_settings(home).keep
        ahead_s = clock_ahead_s(home.folder("scheduler"), parse_age(keep), time.time()) if keep else 0.0
        facts: dict[str, Any] = {**store.describe(), "keep": keep, "clock_ahead_s": round(ahead_s)}
    if as_json:
        print_json(facts)
        return
    rows: dict[str, int] = facts["rows"]
    free = f", {facts['free_bytes'] / 1e6:,.1f} MB of it free" if facts.get("free_bytes") else ""
    stored = "forever (the setting keep in [scheduler] of config.toml)"
    if facts["keep"]:
        stored = f"{facts['keep']} after the campaign's end"
    print_lines(
        [
            f"store      {safe_text(facts['store'], 400)}",
            *([f"schema     {facts['schema']}"] if facts.get("schema") else []),
            f"engine     {safe_text(facts['engine'], 100)}, schema version {facts['version']}",
            f"size       {facts['bytes'] / 1e6:,.1f} MB{free}",
            f"campaigns  {rows['campaigns']:,}, {facts['open_campaigns']:,} open",
            f"tasks      {rows['tasks']:,}, {rows['results']:,} ended",
            f"records    {rows['records']:,}",
            f"events     {rows['events']:,}",
            f"kept       {stored}",
            *(_seat_line(seat) for seat in facts["schedulers"]),
        ]
    )
    if ahead_s:
        print(
            f"warning    the clock is {show_duration(ahead_s)} ahead of the latest time that this home has seen: little is deleted until "
            "sark-node db prune --clock-is-right"
        )
    if facts.get("flushes") is False:
        print("warning    fsync is off on the server: a power failure may lose data")


@db.command()
def migrate(ctx: typer.Context) -> None:
    """Upgrade the store's schema. Every command does this by itself."""
    from scheduler.store.database import backend_of
    from scheduler.store.schema import MIGRATIONS
    from scheduler.store.store import has_store, store_location

    home: Home = ctx.obj
    before = 0
    if has_store(home):
        backend = backend_of(store_location(home))
        with backend.connect() as c, backend.errors():
            before = backend.version(c)
    with opened(ctx) as store:
        location = store.location
    if before == len(MIGRATIONS):
        print(f"{location} has schema version {before}, the current one.")
    elif before:
        print(f"{location} was upgraded from schema version {before} to {len(MIGRATIONS)}.")
    else:
        print(f"{location} was created.")


@db.command()
def backup(ctx: typer.Context, file: BackupFile) -> None:
    """Back up the whole store to the SQLite file FILE while campaigns run."""
    print(f"{_write(ctx, file)}, without keys and models of open campaigns")


@db.command()
def restore(
    ctx: typer.Context,
    file: BackupFile,
    replace: Annotated[
        bool, typer.Option("--replace", help="Delete the current contents of the store.")
    ] = False,
) -> None:
    """Restore the store from a file of `db backup` or `db export`, completely or not at all."""
    from scheduler.store import archive
    from scheduler.submit.daemon import is_running

    with opened(ctx) as store:
        if is_running(ctx.obj):
            raise ResourceError(
                "a backup cannot be restored while this home's scheduler runs",
                hint="wait until its campaigns have ended, or stop it: "
                f"kill {(ctx.obj.folder('scheduler') / 'lock').read_text().strip()}",
            )
        store.claim()
        campaigns = store.describe()["rows"]["campaigns"]
        if campaigns and not replace:
            raise CampaignError(
                f"{store.location} holds {count(campaigns, 'campaign')}, which restoring would delete",
                hint="replace them with --replace, or add to them with: sark-node db import FILE",
            )
        with archive.open_copy(file, ctx.obj.folder("scheduler")) as source:
            restored = archive.replace(store, source)
    print(f"restored {count(restored, 'campaign')} from {file}")


def _seat_line(seat: Mapping[str, Any]) -> str:
    stands = f"leads {count(seat['campaigns'], 'campaign')}" if seat["left_s"] > 0 else "does not run"
    return f"scheduler  seat {seat['seat']} at {safe_text(seat['place'], 200)}: {stands}; {seat['peer']}"


@db.command("export")
def export(ctx: typer.Context, file: BackupFile) -> None:
    """Back up the whole store to FILE as a gzipped SQLite file, for any kind of store."""
    print(_write(ctx, file, packed=True))


def _write(ctx: typer.Context, file: Path, *, packed: bool = False) -> str:
    from scheduler.store.archive import write_copy

    refuse_existing(file)
    with opened(ctx) as store:
        write_copy(file, store, packed=packed)
        return f"wrote {count(store.describe()['rows']['campaigns'], 'campaign')} to {file}"


@db.command("import")
def import_(
    ctx: typer.Context,
    file: BackupFile,
    with_open: Annotated[
        bool,
        typer.Option(
            "--open",
            help="Also import unfinished campaigns and continue them here. No other home may still run them.",
        ),
    ] = False,
) -> None:
    """Import the campaigns of FILE that this store does not have, with results, signatures and events."""
    from scheduler.store.archive import load, open_copy

    with opened(ctx) as store, open_copy(file, ctx.obj.folder("scheduler")) as source:
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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the campaigns that would be deleted.")
    ] = False,
    clock_is_right: Annotated[
        bool,
        typer.Option("--clock-is-right", help="Believe this machine's clock even if it is far ahead."),
    ] = False,
) -> None:
    """Delete old campaigns with their results and records. Unfinished campaigns and written files remain.

    For 30 days, the devices that ran them are asked to forget them too whenever a campaign of yours finds them online.
    """
    from scheduler.experiments.deletion import too_old, too_old_line
    from scheduler.store.retention import believe_clock
    from scheduler.store.store import delete_old, store_settings
    from swarm.net.identity import load_or_create

    age = older_than or store_settings(ctx.obj).keep
    if not age:
        raise CampaignError(
            "prune requires --older-than",
            hint="such as --older-than 90d, or set keep in [scheduler] of config.toml",
        )
    age_s = duration_option("--older-than", age, units="h d w y", max_s=1000 * YEAR_S)
    believe_clock(ctx.obj.folder("scheduler"), age_s, time.time(), confirmed=clock_is_right)
    with opened(ctx) as store:
        if dry_run:
            for campaign in store.campaigns.old(age_s, keep=keep):
                print(f"{campaign.id}  {safe_text(campaign.name, 60)}")
            return
        deleted = delete_old(
            store, age_s, keep=keep, scheduler=load_or_create(ctx.obj.key("scheduler")).peer_id
        )
        owed = [row for row in store.deletions.owed() if row.campaign in deleted]
        old = too_old(store, owed)
    print(f"deleted {count(len(deleted), 'campaign')}")
    for device, version in old.items():
        print(too_old_line(device, version))
    if owed:
        devices = count(len({row.worker for row in owed}), "device")
        print(
            f"{devices} must still forget these campaigns: each is asked when a campaign of yours finds it online"
        )


app = typer.Typer()
app.add_typer(db, name="db", rich_help_panel=GENERAL)
