"""What somebody types who looks after the store: db info, migrate, backup, restore, export, import, prune."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from protocol.errors import CampaignError, ResourceError
from scheduler.cli.options import JSON, new_console, print_json
from swarm.base.home import Home
from swarm.base.text import count, safe_text
from swarm.base.units import DurationError, parse_age

if TYPE_CHECKING:  # the store brings SQLAlchemy, which no other command should wait for
    from scheduler.store.archive import Entry

db = typer.Typer(no_args_is_help=True, help="Look after the store of campaigns and results.")
SQLITE: Final = b"SQLite format 3\0"

FILE = typer.Argument(help="The file.", dir_okay=False)


@db.command()
def info(ctx: typer.Context, as_json: Annotated[bool, JSON] = False) -> None:
    """Say where the store is, what keeps it, how large it is and what is in it."""
    from scheduler.store.opening import open_store, store_settings

    with open_store(ctx.obj) as store:
        told = store.describe() | {"keep": store_settings(ctx.obj).keep}
    if as_json:
        print_json(told)
        return
    for line in info_lines(told):
        new_console().print(line, markup=False, highlight=False, soft_wrap=True)


def info_lines(told: dict[str, Any]) -> Iterator[str]:
    """For people."""
    rows: dict[str, int] = told["rows"]
    yield f"store      {safe_text(told['store'], 400)}"
    if told.get("schema"):
        yield f"schema     {told['schema']}"
    yield f"engine     {safe_text(told['engine'], 100)}, form {told['version']}"
    free = f", {told['free_bytes'] / 1e6:,.1f} MB of it free for new ones" if told.get("free_bytes") else ""
    yield f"size       {told['bytes'] / 1e6:,.1f} MB{free}"
    yield f"campaigns  {rows['campaigns']:,}, {told['open_campaigns']:,} of them open"
    yield f"tasks      {rows['tasks']:,}, {rows['results']:,} of them over"
    yield f"records    {rows['records']:,}"
    yield f"events     {rows['events']:,}"
    kept = (
        f"{told['keep']} after their end" if told["keep"] else "for ever (keep in [scheduler] of config.toml)"
    )
    yield f"kept       {kept}"
    if told.get("flushes") is False:
        yield "warning    the server has fsync turned off: a power cut may cost what was stored"


@db.command()
def migrate(ctx: typer.Context) -> None:
    """Bring the store to the form of this sark-node. Every command does so by itself; here nothing else happens."""
    from scheduler.store.database import backend_of
    from scheduler.store.opening import has_store, open_store, store_location
    from scheduler.store.schema import MIGRATIONS

    home: Home = ctx.obj
    before = 0
    if has_store(home):
        backend = backend_of(store_location(home))
        with backend.connect() as c, backend.errors():
            before = backend.version(c)
    with open_store(home) as store:
        place = store.location
    if before == len(MIGRATIONS):
        print(f"{place} has form {before}, the newest that this sark-node knows.")
    else:
        print(
            f"{place} was brought from form {before} to {len(MIGRATIONS)}." if before else f"{place} is made."
        )


@db.command()
def backup(ctx: typer.Context, file: Annotated[Path, FILE]) -> None:
    """Copy the whole store into FILE while campaigns go on: a SQLite file, or from a server what `db export` writes."""
    from scheduler.store.archive import write_backup
    from scheduler.store.opening import open_store

    _refuse_there(file)
    with open_store(ctx.obj) as store:
        write_backup(file, store)
        told = store.describe()["rows"]["campaigns"]
    print(f"{count(told, 'campaign')} in {file}. Models of open campaigns and the keys are no part of it.")


@db.command()
def restore(
    ctx: typer.Context,
    file: Annotated[Path, FILE],
    replace: Annotated[
        bool, typer.Option("--replace", help="What the store holds now goes, and the backup takes its place.")
    ] = False,
) -> None:
    """Have the store as it was when FILE was written by `db backup` or `db export`, here or elsewhere. All of it or nothing."""
    from scheduler.store import archive
    from scheduler.store.opening import open_store
    from scheduler.submit.daemon import is_running

    home: Home = ctx.obj
    with open_store(home) as store:
        if is_running(home):
            raise ResourceError(
                "the scheduler of this home is running: a backup cannot be restored now",
                hint="wait until its campaigns have ended, or cancel them",
            )
        store.claim()
        campaigns = store.describe()["rows"]["campaigns"]
        if campaigns and not replace:
            raise CampaignError(
                f"{store.location} holds {count(campaigns, 'campaign')}, which restoring would delete",
                hint="replace them with --replace, or add to them with: sark-node db import FILE",
            )
        with _entries_of(file) as entries:
            told = archive.replace(store, entries)
    print(f"{count(told, 'campaign')} from {file}.")


@db.command("export")
def export(ctx: typer.Context, file: Annotated[Path, FILE]) -> None:
    """Write everything into FILE as gzipped JSON Lines, as of one instant: to be read in anywhere, also by another kind of store."""
    from scheduler.store.archive import dump, write_archive
    from scheduler.store.opening import open_store

    _refuse_there(file)
    with open_store(ctx.obj) as store:
        told = write_archive(file, dump(store))
    print(f"{count(told, 'campaign')} in {file}.")


@db.command("import")
def import_(
    ctx: typer.Context,
    file: Annotated[Path, FILE],
    with_open: Annotated[
        bool,
        typer.Option(
            "--open",
            help="Also campaigns that had not ended: this home carries them on. Nobody else may then.",
        ),
    ] = False,
) -> None:
    """Take in the campaigns of FILE that are not here yet, with all their results, signatures and events. Those that are here stay."""
    from scheduler.store.archive import load
    from scheduler.store.opening import open_store

    with open_store(ctx.obj) as store, _entries_of(file) as entries:
        told = load(store, entries, with_open=with_open)
    print(f"{count(told.new, 'campaign')} taken in; {told.known} were here already.")
    if told.open:
        print(
            f"{count(told.open, 'campaign')} had not ended and stayed out: with --open this home carries them on,"
            " if it is nobody else's work any more."
        )


@db.command()
def prune(
    ctx: typer.Context,
    older: Annotated[
        str, typer.Option(help="Ended longer ago than that, such as 90d.  \\[default: the setting `keep`]")
    ] = "",
    keep: Annotated[int, typer.Option(min=0, help="Always keep so many that ended last.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which.")] = False,
) -> None:
    """Remove campaigns that ended long ago, with their results and records. Open ones always stay, as do files already written."""
    from scheduler.store.opening import delete_old, open_store, store_settings

    asked = older or store_settings(ctx.obj).keep
    if not asked:
        raise CampaignError(
            "prune: how old?", hint="say it: --older 90d, or set keep in [scheduler] of config.toml"
        )
    try:
        age_s = parse_age(asked)
    except DurationError as exc:
        raise CampaignError(f"--older: {safe_text(exc.what)}", hint=exc.hint) from None
    with open_store(ctx.obj) as store:
        if dry_run:
            for campaign in store.campaigns.old(age_s, keep=keep):
                print(f"{campaign.id}  {safe_text(campaign.name, 60)}")
            return
        gone = delete_old(store, age_s, keep=keep)
    print(f"{count(len(gone), 'campaign')} removed.")


def _refuse_there(file: Path) -> None:
    if file.exists():
        raise CampaignError(f"{file} is there already", hint="name another file, or remove it")


@contextmanager
def _entries_of(file: Path) -> Iterator[Iterator[Entry]]:
    """The rows in a backup or an export, whichever it is; it has been read through once and is whole."""
    from scheduler.store.archive import check_archive, dump, read_archive
    from scheduler.store.store import Store

    try:
        with file.open("rb") as read:
            head = read.read(len(SQLITE))
    except OSError as exc:
        raise CampaignError(f"cannot read {file}: {exc.strerror or exc}") from None
    if head != SQLITE:
        check_archive(file)
        yield read_archive(file)
        return
    with tempfile.TemporaryDirectory(prefix="sark-restore-") as folder:
        copy = Path(folder) / "store.db"
        copy.write_bytes(file.read_bytes())  # it is brought to the newest form, and the backup stays as it is
        with Store(copy) as source:
            yield dump(source)


app = typer.Typer()
app.add_typer(db, name="db", rich_help_panel="For all")
