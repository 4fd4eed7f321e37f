"""The program: the roles' commands joined into `sark-node`, and what a driver author imports.

    scheduler/cli/campaigns.py ─┐
    node/cli/main.py ──────┼──▶ sark-node
    gate/cli/main.py ──────┘

Our packages have plain names (`node`, `scheduler`, …), so another distribution in the same environment may claim one of them. That
is checked here before anything else is imported.
"""

from __future__ import annotations

import gc
import importlib
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

PACKAGES = ("protocol", "results", "swarm", "drivers", "node", "scheduler", "gate", "web")
DISTRIBUTION = "sark-node"
FEW_COLLECTIONS = (50_000, 20, 50)
"""Loading libp2p makes a million objects that all stay: Python's usual thresholds spend a tenth of the start on looking through them."""


def foreign_packages() -> dict[str, str]:
    """Names of ours that somebody else's package answers to, and where it lies. Empty when all is well."""
    foreign: dict[str, str] = {}
    for name in PACKAGES:
        try:
            package = importlib.import_module(name)
        except ImportError as exc:
            foreign[name] = f"not importable: {exc}"
            continue
        if getattr(package, "PART_OF", None) != DISTRIBUTION:
            foreign[name] = str(getattr(package, "__file__", None) or list(getattr(package, "__path__", [])))
    return foreign


def _refuse_foreign_packages() -> None:
    foreign = foreign_packages()
    if foreign:
        told = ", ".join(f"{name} ({where})" for name, where in foreign.items())
        sys.stderr.write(
            f"sark-node: these packages are not ours: {told}\n"
            "  another distribution claims the names; install sark-node into an environment of its own:\n"
            "  uv tool install sark-node    or    python3 -m venv sark && sark/bin/pip install sark-node\n"
        )
        raise SystemExit(6)


try:
    _refuse_foreign_packages()

    import typer

    import gate.cli.main
    import node.cli.device
    import node.cli.main
    import node.cli.models
    import node.cli.owner
    import scheduler.cli.bench
    import scheduler.cli.campaigns
    import scheduler.cli.completion
    import scheduler.cli.experiments
    import web.cli
    from drivers.contract.base import Driver, Unfit, UnitInfo, WorkOrder
    from protocol.errors import SarkError
    from swarm.base.home import Home
except KeyboardInterrupt:  # Ctrl-C before there is a program that could say something
    raise SystemExit(130) from None

if TYPE_CHECKING:
    from fastapi import APIRouter

    from node.run.local import LocalDevice
    from protocol.messages.work import Action
    from results.analysis.compare import Comparison
    from scheduler.local.bench import Bench, Measurement
    from web.http.context import Tell

__all__ = [
    "Bench",
    "Comparison",
    "Driver",
    "Measurement",
    "Unfit",
    "UnitInfo",
    "WorkOrder",
    "app",
    "main",
    "open_bench",
]


def _this_device(home: Home, simulate: bool) -> LocalDevice:
    from node.run.local import LocalDevice
    from node.settings.driver_secrets import private_of
    from node.settings.settings import WorkerSettings

    settings = WorkerSettings.load(home.config_file, os.environ, {})
    private = private_of(settings, os.environ)
    return LocalDevice(home, simulate=simulate, private=private, patience_s=settings.max_wait_s)


def _routers(home: Home, ways: Callable[[], tuple[str, ...]]) -> Sequence[APIRouter]:
    """What the other roles of a home offer beside the scheduler's own endpoints. `ways`: into the swarm, as of now."""
    import gate.api
    import node.api

    return node.api.router(home), gate.api.router(home, ways)


def _telling(home: Home, ways: Callable[[], tuple[str, ...]]) -> Tell:
    """How the API says something to a worker, as its owner. `ways`: into the swarm, as of now; blocking."""
    import trio

    import node.api
    from web.http.context import OwnerReplyInfo

    async def tell(peer: str, action: Action) -> OwnerReplyInfo:
        gates = await trio.to_thread.run_sync(ways)
        return OwnerReplyInfo(*await node.api.command_worker(home, peer, gates, action))

    return tell


def _serving(ctx: typer.Context, where: str, gate: list[str] | None) -> AbstractAsyncContextManager[None]:
    """For a worker that serves its home, too."""
    return web.cli.serving(ctx, _routers, _telling, web.cli.terms_of(where), gate)


def openapi_text() -> str:
    """The document of the HTTP API with all that any role offers, as it stands in docs/openapi.json."""
    from web.app import open_app
    from web.http.context import ApiContext
    from web.http.openapi import document_text

    home = Home.at(Path("nowhere"))  # nothing of it is looked at
    desk = ApiContext(home, gates=tuple, keep_alive=lambda: None)
    return document_text(open_app(desk, _routers(home, tuple)))


def open_bench(home: Path | None = None, *, simulate: bool = False) -> Bench:
    """Measure models on this device from Python, without any network but for models by URL; one start of each runtime serves all of them.

        with sark.open_bench() as bench:
            for model in ("a.onnx", "b.onnx"):
                found = bench.measure(model, precision=0.02)
                print(found.row.file_name, found.median_ms, found.interval_ms, found.verdict)

    A model is a file or, as for `bench`, a URL, which is fetched once, such as `hf://ORG/REPO/model.onnx@REVISION`; `measure(…, sha256=…)`
    refuses another one. `home`: the folder for keys and the cache instead of the platform's own. Blocking; see `scheduler.bench.Bench`.
    """
    from scheduler.local.bench import Bench
    from scheduler.models.fetch import downloader

    there = Home.at(home)
    fetch = downloader(there, lambda name, done, total: None)
    return Bench(_this_device(there, simulate), fetch=fetch, folder=there.cache)


def __getattr__(name: str) -> object:
    """`Bench`, `Comparison` and `Measurement`, imported when they are asked for: the program starts without them."""
    if name in ("Bench", "Comparison", "Measurement"):
        return getattr(importlib.import_module("scheduler.local.bench"), name)
    raise AttributeError(f"module 'sark' has no attribute {name!r}")


app = typer.Typer(
    name="sark-node",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={
        "help_option_names": ["-h", "--help"],
        "obj": scheduler.cli.completion.OFFERS,
    },
    epilog="Start with: [bold]sark-node demo[/bold].  Exit codes: 0 well, 1 tasks failed, 2 bad input, 3 nothing fits, "
    "4 unreachable, 5 not permitted, 6 local resource, 130 interrupted.",
)
app.add_typer(scheduler.cli.campaigns.app)
app.add_typer(node.cli.main.app)
app.add_typer(node.cli.device.app)
app.add_typer(node.cli.models.app)
app.add_typer(node.cli.owner.app)
app.add_typer(gate.cli.main.app)
scheduler.cli.experiments.add_experiment(app)
scheduler.cli.bench.add_bench(app, _this_device)
web.cli.add_serve(app, _routers, _telling)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"sark-node {version('sark-node')}")
        raise typer.Exit


@app.callback()
def common(
    ctx: typer.Context,
    home: Annotated[
        Path | None,
        typer.Option(
            help="Keep keys, data, cache and logs below this folder instead of the platform's own.",
            envvar="SARK_HOME",
            file_okay=False,
        ),
    ] = None,
    log_level: Annotated[
        str, typer.Option(help="debug, info, warning or error; to stderr.", envvar="SARK_LOG_LEVEL")
    ] = "warning",
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Benchmark any machine-learning model on every device you can reach, with no server in the middle."""
    from swarm.base.logs import set_up_logs

    ctx.obj = Home.at(home)
    ctx.meta["environment"] = dict(os.environ)
    ctx.meta["home_flag"] = home
    ctx.meta["serving"] = partial(_serving, ctx)
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise typer.BadParameter("one of debug, info, warning, error", param_hint="--log-level")
    set_up_logs(
        sys.stderr, level=level, plain=level >= logging.WARNING and ctx.invoked_subcommand != "schedule"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command (None: the command line's); errors that are not bugs end in a line or two and an exit code."""
    gc.set_threshold(*FEW_COLLECTIONS)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that this terminal cannot show is no reason to end
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = app(arguments, prog_name="sark-node", standalone_mode=False)
    except BaseException as exc:  # noqa: BLE001  (the outermost edge: sorts bugs from what can be told in a line)
        raise SystemExit(_exit_code(exc)) from None
    raise SystemExit(code if isinstance(code, int) else 0)


def _exit_code(exc: BaseException) -> int:
    """Tell what went wrong and give the exit code. A bug is raised again, whole."""
    leaves = list(_leaves(exc))
    for leaf in leaves:
        if not isinstance(leaf, (SarkError, typer.TyperException, KeyboardInterrupt, *_QUIET)):
            raise exc
    for leaf in leaves:
        if isinstance(leaf, SarkError):
            _tell(leaf.what, leaf.hint)
            return leaf.exit_code
        if isinstance(leaf, typer.TyperException):
            show = getattr(leaf, "show", None)
            if callable(show):
                show()
            else:
                _tell(str(leaf), "")
            return int(getattr(leaf, "exit_code", 2))
        if isinstance(leaf, BrokenPipeError):  # the reader of our output has gone, as `| head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        if isinstance(leaf, (SystemExit, typer.Exit)):
            code = leaf.code if isinstance(leaf, SystemExit) else leaf.exit_code
            return code if isinstance(code, int) else 1 if code else 0
    return 130


_QUIET = (SystemExit, typer.Exit, typer.Abort, BrokenPipeError)


def _leaves(exc: BaseException) -> Iterator[BaseException]:
    """trio hands over what its tasks raised in groups; their leaves are what happened."""
    if isinstance(exc, BaseExceptionGroup):
        for item in exc.exceptions:
            yield from _leaves(item)
    else:
        yield exc


def _tell(what: str, hint: str) -> None:
    from swarm.base.text import safe_text

    sys.stderr.write(f"sark-node: {safe_text(what, 2000)}\n")
    for line in hint.splitlines():
        sys.stderr.write(f"  {safe_text(line, 2000)}\n")


if __name__ == "__main__":
    main()
