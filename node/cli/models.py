"""The owner's commands for local models: models, models add, remove, pin, unpin. They also work while the worker runs."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from protocol.errors import SarkError, SettingsError
from protocol.values.requirement import show_size
from swarm.base.durable import make_folder
from swarm.base.home import Home
from swarm.base.screen import new_console, print_json
from swarm.base.units import show_duration

if TYPE_CHECKING:
    from node.store.model_files import ModelFile

PANEL = "This device"
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _models(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Completion: names and hashes of local models."""
    from node.store import model_files

    if ctx.obj is None:
        return []
    with contextlib.suppress(SarkError):
        stored = model_files.listing(ctx.obj.home(ctx).cache / "models")
        stored = tuple(each for each in stored if not each.arriving)
        names = [(each.name, f"{each.sha256[:16]}…") for each in stored if each.name.startswith(incomplete)]
        return names or [(each.sha256, each.name) for each in stored if each.sha256.startswith(incomplete)]
    return []


Models = Annotated[
    list[str],
    typer.Argument(
        help="A model's name, or at least the first six digits of its hash.",
        metavar="HASH...",
        autocompletion=_models,
    ),
]
app = typer.Typer()
models = typer.Typer(invoke_without_command=True)
app.add_typer(models, name="models", rich_help_panel=PANEL)


@models.callback()
def listed(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the models stored on this device, most recently used first; add, remove, pin or unpin models. Needs no network."""
    if ctx.invoked_subcommand is None:
        list_(ctx, as_json)


@models.command("list")
def list_(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the models stored on this device, most recently used first."""
    from node.store.model_files import listing

    folder = _folder(ctx)
    local = listing(folder)
    if as_json:
        print_json({"folder": str(folder), "models": [_plain(each) for each in local]})
        return
    if not local:
        print(
            "No models are stored here. They arrive with tasks; to add one yourself: sark-node models add FILE"
        )
        return
    console = new_console()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("model", "size", "last used", "", "from", "hash"):
        table.add_column(column, justify="right" if column == "size" else "left")
    now = time.time()
    for each in local:
        state = "arriving" if each.arriving else "pinned" if each.pinned else ""
        table.add_row(
            Text(each.name or "?"),
            show_size(each.size),
            _ago(each.used, now),
            state,
            Text(each.origin or "?"),
            f"{each.sha256[:16]}…",
        )
    console.print(table)
    console.print(
        f"{show_size(sum(each.size for each in local))} in {folder}", highlight=False, soft_wrap=True
    )


@models.command()
def add(
    ctx: typer.Context,
    file: Annotated[list[Path], typer.Argument(help="A model's file, or its folder.", metavar="FILE...")],
    pin_it: Annotated[bool, typer.Option("--pin", help="Never evict it when space runs short.")] = False,
) -> None:
    """Copy models to this device, so that no task has to fetch them. Your file is not changed."""
    from node.settings.settings import WorkerSettings
    from node.store import model_files
    from node.store.cache import MARGIN, default_cap

    home: Home = ctx.obj
    folder = _folder(ctx)
    settings = WorkerSettings.load(home.config_file, ctx.meta["environment"], {})
    make_folder(folder)
    for path in file:
        _refuse_unknown(path.expanduser())
        used = sum(each.size for each in model_files.listing(folder))
        free = shutil.disk_usage(folder).free
        cap = settings.cache_bytes if settings.cache_bytes is not None else default_cap(free + used)
        stored = model_files.add(folder, path.expanduser(), room=min(cap, free - MARGIN))
        if pin_it:
            model_files.set_pin(folder, stored, True)
        print(f"{stored.name}: {show_size(stored.size)}, {stored.sha256}{', pinned' if pin_it else ''}")


def _refuse_unknown(path: Path) -> None:
    """Raises `SettingsError` for a file that no driver of this device knows, because no task could use it."""
    from drivers.contract.base import Unfit
    from drivers.contract.formats import check_format
    from drivers.contract.registry import all_ours
    from protocol.formats.frameworks import TITLES

    if path.exists() and all_ours():
        try:
            check_format(path)
        except Unfit as exc:
            raise SettingsError(
                f"{path} is not a model that a driver here knows: {exc}", hint=TITLES
            ) from None


@models.command()
def remove(ctx: typer.Context, model: Models) -> None:
    """Delete models from this device. A model that a run is using is kept."""
    from node.store import model_files

    folder = _folder(ctx)
    for each in [model_files.find(folder, word) for word in model]:
        model_files.remove(folder, each)
        print(f"removed {_called(each)}, {show_size(each.size)}")


@models.command()
def pin(ctx: typer.Context, model: Models) -> None:
    """Never evict models when space runs short."""
    _set_pins(ctx, model, True)


@models.command()
def unpin(ctx: typer.Context, model: Models) -> None:
    """Allow models to be evicted again when space runs short."""
    _set_pins(ctx, model, False)


def _set_pins(ctx: typer.Context, words: list[str], on: bool) -> None:
    from node.store import model_files

    folder = _folder(ctx)
    for each in [model_files.find(folder, word) for word in words]:
        model_files.set_pin(folder, each, on)
        print(f"{'pinned' if on else 'no longer pinned'}: {_called(each)}")


def _folder(ctx: typer.Context) -> Path:
    home: Home = ctx.obj
    return home.cache / "models"


def _called(model: ModelFile) -> str:
    return f"{model.name} ({model.sha256[:16]}…)" if model.name else f"{model.sha256[:16]}…"


def _plain(model: ModelFile) -> dict[str, object]:
    return {
        "sha256": model.sha256,
        "name": model.name,
        "size": model.size,
        "last_used": model.used,
        "pinned": model.pinned,
        "arriving": model.arriving,
        "from": model.origin,
    }


def _ago(when: float | None, now: float) -> str:
    if when is None:
        return "?"
    minutes = (now - when) // 60
    return f"{show_duration(minutes * 60)} ago" if minutes > 0 else "just now"
