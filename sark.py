"""The program `sark-node`: the commands of all roles, and the names that driver authors import.

Our packages have plain names (`node`, `scheduler`, …) that another distribution in the same environment may claim. The program checks for
that before it imports anything else.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

PACKAGES = ("protocol", "results", "swarm", "drivers", "node", "scheduler", "gate", "web")
DISTRIBUTION = "sark-node"
__path__ = [str(Path(__file__).with_suffix(""))]
"""Holds `sark.testing`; its `__init__.pyi` tells type checkers what is public here."""
GC_THRESHOLDS = (200_000, 20, 50)
"""Startup creates 100,000 long-lived objects. With Python's defaults the collector spends a tenth of the startup time scanning them."""


def foreign_packages() -> dict[str, str]:
    """Our package names that another distribution claims, with the location of the foreign package."""
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


try:
    if foreign := foreign_packages():
        names = ", ".join(f"{name} ({where})" for name, where in foreign.items())
        sys.stderr.write(
            f"sark-node: another distribution claims these package names: {names}\n"
            "  install sark-node into an environment of its own:\n"
            "  uv tool install sark-node    or    python3 -m venv sark && sark/bin/pip install sark-node\n"
        )
        raise SystemExit(6)

    import typer
    from typer.core import TyperGroup

    from protocol.errors import SarkError
    from scheduler.cli import completion
    from swarm.base.home import Home
except KeyboardInterrupt:  # Ctrl-C during the imports
    raise SystemExit(130) from None

if TYPE_CHECKING:
    from fastapi import APIRouter

    from drivers.contract.base import Driver, Unfit, UnitInfo, WorkOrder
    from node.run.answer import LocalAnswers
    from node.run.local import LocalDevice
    from protocol.messages.work import Action
    from protocol.words import WorkerState
    from results.row.comparison import Comparison
    from scheduler.local.bench import Bench, Measurement
    from web.http.context import SendAction

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
    from node.settings.settings import WorkerSettings, driver_secrets

    settings = WorkerSettings.load(home.config_file, os.environ, {})
    private = driver_secrets(settings, os.environ)
    return LocalDevice(
        home,
        simulate=simulate,
        private=private,
        max_wait_s=settings.max_wait_s,
        meter_file=settings.meter_file,
        gpus=settings.gpus,
    )


def _answers() -> LocalAnswers:
    """The checker of strangers' outputs on this machine."""
    from node.run.answer import LocalAnswers

    return LocalAnswers()


def _routers(home: Home, gates: Callable[[], tuple[str, ...]]) -> Sequence[APIRouter]:
    """HTTP endpoints of a home's worker and gate."""
    import gate.api
    import node.api

    return node.api.router(home), gate.api.router(home, gates)


def _send_action(home: Home, gates: Callable[[], tuple[str, ...]]) -> SendAction:
    """The function by which the HTTP API controls a worker, as its owner. `gates` blocks."""
    import node.api
    from swarm.base.threads import LAN

    async def send(peer: str, action: Action) -> WorkerState:
        current = await LAN.run(gates)
        state, _ = await node.api.command_worker(home, peer, current, action)
        return state

    return send


def _install_server(ctx: typer.Context, remove: bool) -> NoReturn:
    """The service of `serve --install`."""
    from node.cli.service import install_service, uninstall_service
    from node.install.service_files import ServiceRole

    if remove:
        uninstall_service(ctx, ServiceRole.SERVER)
    install_service(ctx, ServiceRole.SERVER)


def _serving(ctx: typer.Context, where: str, gate: list[str] | None) -> AbstractAsyncContextManager[None]:
    """The server of `join --serve`."""
    from web.cli import parse_serve, serving

    return serving(ctx, _routers, _send_action, parse_serve(where), gate)


@asynccontextmanager
async def _taking_up(ctx: typer.Context, gate: list[str] | None) -> AsyncIterator[None]:
    """Run this home's open campaigns, as the service of `join --install` also does."""
    import trio

    from scheduler.cli.options import gates_of, keeper
    from scheduler.submit.keep_running import take_up_campaigns

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_up_campaigns, ctx.obj, lambda: keeper(ctx, gates_of(ctx, gate))())
        yield
        nursery.cancel_scope.cancel()


def openapi_text() -> str:
    """The OpenAPI document of all roles: docs/openapi.json."""
    from web.app import make_open_app
    from web.http.context import ApiContext
    from web.http.openapi import document_text

    home = Home.at(Path("unused"))
    context = ApiContext(home, gates=tuple, start_scheduler=lambda: None)
    return document_text(make_open_app(context, _routers(home, tuple)))


def open_bench(home: Path | None = None, *, simulate: bool = False) -> Bench:
    """Measure models on this device from Python. Each runtime starts once for all models.

        with sark.open_bench() as bench:
            for model in ("a.onnx", "b.onnx"):
                result = bench.measure(model, precision=0.02)
                print(result.row.file_name, result.median_ms, result.interval_ms, result.verdict)

    A model is a file or a URL, such as `hf://ORG/REPO/model.onnx@REVISION`, which is fetched once; `measure(…, sha256=…)` verifies it.
    `home`: folder for keys and cache instead of the platform's. Blocking; see `scheduler.local.bench.Bench`.
    """
    from scheduler.local.bench import Bench
    from scheduler.models.fetch import downloader

    at = Home.at(home)
    fetch = downloader(at, lambda name, done, total: None)
    return Bench(_this_device(at, simulate), fetch=fetch, folder=at.cache)


_EXPORTED = {
    **dict.fromkeys(("Bench", "Comparison", "Measurement"), "scheduler.local.bench"),
    **dict.fromkeys(("Driver", "Unfit", "UnitInfo", "WorkOrder"), "drivers.contract.base"),
}


def __getattr__(name: str) -> object:
    """Import an exported name on first use, so that the program starts without it."""
    if name in _EXPORTED:
        return getattr(importlib.import_module(_EXPORTED[name]), name)
    raise AttributeError(f"module 'sark' has no attribute {name!r}")


def _bench() -> typer.Typer:
    from scheduler.cli.bench import add_bench

    app = typer.Typer()
    add_bench(app, _this_device)
    return app


def _serve() -> typer.Typer:
    from web.cli import add_serve

    app = typer.Typer()
    add_serve(app, _routers, _send_action, _install_server)
    return app


def _experiment() -> typer.Typer:
    from scheduler.cli.experiments import add_experiment

    app = typer.Typer()
    add_experiment(app)
    return app


COMMANDS: Mapping[str, str | Callable[[], typer.Typer]] = {
    "bench": _bench,
    "serve": _serve,
    "init validate plan submit retry schedule": "scheduler.cli.submit",
    "watch attach campaigns explain profile events results cancel": "scheduler.cli.campaigns",
    "delete": "scheduler.cli.delete",
    "delegate adopt": "scheduler.cli.adopt",
    "verify compare matrix report chart": "scheduler.cli.analysis",
    "score": "scheduler.cli.score",
    "peers top demo": "scheduler.cli.fleet",
    "trust": "scheduler.cli.trust",
    "info": "node.cli.info",
    "join start": "node.cli.main",
    "calibrate enroll doctor test": "node.cli.device",
    "models": "node.cli.models",
    "status pause resume drain reset": "node.cli.owner",
    "logs": "node.cli.logs",
    "invite pool gate": "gate.cli.main",
    "db": "scheduler.cli.db",
    "experiment": _experiment,
}
"""Where each command is defined, in the order of `--help`: the name of a module with an `app`, or a function that makes an app."""


LOGGED: Final = {
    "join": "worker.jsonl",
    "gate": "gate.jsonl",
    "serve": "serve.jsonl",
    "schedule": "scheduler.jsonl",
}
"""Commands that run long-lived processes, and the names of their log files."""
START: Final = ("demo", "bench", "init", "submit", "results", "invite", "join", "doctor")
"""Commands that `--help` shows first."""
OTHER_NAMES: Final = {
    **dict.fromkeys(("devices", "workers", "nodes"), "peers"),
    **dict.fromkeys(("list", "ls", "jobs"), "campaigns"),
    "run": "submit",
    **dict.fromkeys(("benchmark", "measure"), "bench"),
    **dict.fromkeys(("remove", "rm"), "delete"),
    **dict.fromkeys(("dashboard", "web", "ui"), "serve"),
    "worker": "join",
    "show": "results",
    "stop": "cancel",
    "why": "explain",
    "units": "info",
}
"""Names that people may try for a command they do not know. None is spelt like the command it stands for."""


class Program(TyperGroup):
    """Imports only the module of the command that is called. Listing the commands, or suggesting one, imports all modules."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            self._load([names for names in COMMANDS if cmd_name in names.split()] or COMMANDS)
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in OTHER_NAMES:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {OTHER_NAMES[args[0]]!r}?")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        self._load(COMMANDS)
        for name in START:
            self.commands[name].rich_help_panel = "Start here"  # type: ignore[attr-defined]
        return list(dict.fromkeys((*START, *super().list_commands(ctx))))

    def _load(self, places: Iterable[str]) -> None:
        for place in map(COMMANDS.__getitem__, places):
            app = importlib.import_module(place).app if isinstance(place, str) else place()
            self.commands.update(typer.main.get_group(app).commands)


app = typer.Typer(
    name="sark-node",
    cls=Program,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "obj": completion.OFFERS},
    epilog="Start with [bold]sark-node demo[/bold].  Exit codes: 0 success, 1 tasks failed, 2 invalid input, 3 no device fits, "
    "4 unreachable, 5 not permitted, 6 local resource, 130 interrupted.",
)


def _version(show: bool) -> None:
    if show:
        from importlib.metadata import version

        typer.echo(f"sark-node {version('sark-node')}")
        raise typer.Exit


@app.callback()
def common(
    ctx: typer.Context,
    home: Annotated[
        Path | None,
        typer.Option(
            help="Store keys, data, cache and logs in this folder instead of the platform's folders.",
            envvar="SARK_HOME",
            file_okay=False,
        ),
    ] = None,
    log_level: Annotated[
        str, typer.Option(help="Log level on stderr: debug, info, warning or error.", envvar="SARK_LOG_LEVEL")
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
    ctx.meta["taking_up"] = partial(_taking_up, ctx)
    ctx.meta["answers"] = _answers
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise typer.BadParameter("must be debug, info, warning or error", param_hint="--log-level")
    command = ctx.invoked_subcommand or ""
    file = ctx.obj.logs / LOGGED[command] if command in LOGGED else None
    plain = level >= logging.WARNING and command != "schedule"
    set_up_logs(sys.stderr, level=level, plain=plain, file=file)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command (None: sys.argv). Expected errors print a line with a hint and set the exit code; bugs print a traceback."""
    gc.set_threshold(*GC_THRESHOLDS)
    atexit.register(
        gc.freeze
    )  # otherwise the interpreter's last collection scans every object although the process is about to end
    if isinstance(sys.stdout, io.TextIOWrapper):  # escape characters that this terminal cannot encode
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = app(arguments, prog_name="sark-node", standalone_mode=False)
    except BaseException as exc:  # noqa: BLE001  (the outermost edge: tells expected errors from bugs)
        raise SystemExit(_exit_code(exc)) from None
    raise SystemExit(code if isinstance(code, int) else 0)


def _exit_code(exc: BaseException) -> int:
    """Print an expected error and return its exit code; re-raise a bug."""
    leaves = _leaves(exc)
    if not all(isinstance(leaf, _EXPECTED) for leaf in leaves):
        raise exc
    for leaf in leaves:
        if isinstance(leaf, SarkError):
            _print_error(leaf.what, leaf.hint)
            return leaf.exit_code
        if isinstance(leaf, typer.TyperException):
            show = getattr(leaf, "show", None) or partial(_print_error, str(leaf), "")
            show()
            return int(getattr(leaf, "exit_code", 2))
        if isinstance(leaf, BrokenPipeError):  # the reader of our output, such as `| head`, closed it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        if isinstance(leaf, (SystemExit, typer.Exit)):
            code = leaf.code if isinstance(leaf, SystemExit) else leaf.exit_code
            return code if isinstance(code, int) else 1 if code else 0
    return 130


_EXPECTED = (
    SarkError, typer.TyperException, KeyboardInterrupt, SystemExit, typer.Exit, typer.Abort, BrokenPipeError,
)  # fmt: skip


def _leaves(exc: BaseException) -> list[BaseException]:
    """The exceptions inside trio's exception groups."""
    if isinstance(exc, BaseExceptionGroup):
        return [leaf for item in exc.exceptions for leaf in _leaves(item)]
    return [exc]


def _print_error(what: str, hint: str) -> None:
    from swarm.base.text import safe_columns, safe_text

    sys.stderr.write(f"sark-node: {safe_text(what, 2000)}\n")
    sys.stderr.writelines(f"  {safe_columns(line)[:2000]}\n" for line in hint.splitlines())


if __name__ == "__main__":
    main()
