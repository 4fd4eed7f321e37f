"""`sark-node serve`, and the server that `join --serve` runs with a worker."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn
from urllib.parse import quote

import typer

from protocol.errors import CampaignError
from scheduler.cli.options import Gates, fetching, gates_of, keeper
from swarm.base.home import Home

if TYPE_CHECKING:  # FastAPI takes a tenth of a second that no other command should wait for
    from fastapi import APIRouter

    from web.http.context import SendAction

PORT: Final = 5000
"""The predecessor's port."""
LOOPBACK: Final = ("127.0.0.1", "::1")
MAX_PORT: Final = 65535

MakeRouters = Callable[[Home, Callable[[], tuple[str, ...]]], Sequence["APIRouter"]]
"""Makes the endpoints of a home's other roles, given its addresses into the swarm."""
MakeSendAction = Callable[[Home, Callable[[], tuple[str, ...]]], "SendAction"]
"""Makes the function by which a home's owner controls workers, given its addresses into the swarm."""


InstallService = Callable[[typer.Context, bool], NoReturn]
"""Installs the service of this command, or removes it if the flag is set."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The addresses at which a home is served, and who may use them."""

    hosts: tuple[str, ...] = LOOPBACK
    port: int = PORT
    names: tuple[str, ...] = ()
    """Additional host names of this server."""
    token_file: Path | None = None
    allow_paths: bool = False
    no_token: bool = False


def add_serve(
    app: typer.Typer, routers: MakeRouters, send_action: MakeSendAction, install_service: InstallService
) -> None:
    @app.command(rich_help_panel="General")
    def serve(
        ctx: typer.Context,
        host: Annotated[
            list[str] | None,
            typer.Option(
                help="Listen on this IP address. Repeatable.  \\[default: loopback only]", metavar="ADDRESS"
            ),
        ] = None,
        port: Annotated[
            int, typer.Option(min=0, max=65535, help="Listen on this port; 0 picks a free one.")
        ] = PORT,
        name: Annotated[
            list[str] | None,
            typer.Option(help="Also accept requests for this host name. Repeatable."),
        ] = None,
        token_file: Annotated[
            Path | None,
            typer.Option(
                help="Require the token in this file, even from your own processes.  \\[default: one of the home's own]",
                dir_okay=False,
            ),
        ] = None,
        no_token: Annotated[
            bool,
            typer.Option(
                "--no-token",
                help="Require no token: every user and program of this machine can then read and submit as you. On loopback only.",
            ),
        ] = False,
        allow_paths: Annotated[
            bool,
            typer.Option(
                "--allow-paths",
                help="Allow submitted campaigns to name files on this machine and URLs on its local networks.",
            ),
        ] = False,
        gate: Gates = None,
        install: Annotated[
            bool,
            typer.Option(
                "--install",
                help="Install a service that serves with the same options now and after each reboot. Open campaigns go on with it.",
            ),
        ] = False,
        uninstall: Annotated[bool, typer.Option("--uninstall", help="Stop and remove that service.")] = False,
    ) -> None:
        """Serve the dashboard and the HTTP API for this home, on loopback by default."""
        import trio

        from swarm.join.node import watch_stop_requests

        if install and uninstall:
            raise CampaignError("--install and --uninstall exclude each other", hint="give one of them")
        if install or uninstall:
            install_service(ctx, uninstall)

        options = ServeOptions(
            tuple(host or LOOPBACK), port, tuple(name or ()), token_file, allow_paths, no_token
        )

        async def run() -> None:
            async with trio.open_nursery() as nursery:
                await nursery.start(watch_stop_requests, lambda name: nursery.cancel_scope.cancel())
                async with serving(ctx, routers, send_action, options, gate):
                    await trio.sleep_forever()

        trio.run(run)


def parse_serve(text: str) -> ServeOptions:
    """The value of `join --serve`: `[HOST:]PORT[,NAME…]`, or '' for the defaults. Raises `CampaignError`."""
    where, *names = (part.strip() for part in text.split(","))
    if not where:
        return ServeOptions(names=tuple(names))
    host, _, port = where.rpartition(":")
    if not port.isdecimal() or int(port) > MAX_PORT:
        raise CampaignError(
            f"--serve: {where!r} has no port",
            hint="write [HOST:]PORT, such as 127.0.0.1:5000, 0.0.0.0:5000 or [::]:5000",
        )
    return ServeOptions((host.strip("[]"),) if host else LOOPBACK, int(port), tuple(names))


@asynccontextmanager
async def serving(
    ctx: typer.Context,
    routers: MakeRouters,
    send_action: MakeSendAction,
    options: ServeOptions,
    gate: list[str] | None,
) -> AsyncIterator[None]:
    """Serve this home inside the context. Raises `CampaignError` and `ResourceError`."""
    import trio

    from scheduler.experiments.schedule import Schedules
    from scheduler.preview.look import check_devices
    from swarm.download.urls import OTHERS_URL_REACH, OWNER_URL_REACH
    from web.app import make_app
    from web.http.context import ApiContext
    from web.http.middleware import AccessRules
    from web.http.peer_user import is_own
    from web.http.server import bind, serve

    home: Home = ctx.obj
    public = not all(map(_is_loopback, options.hosts))
    token, token_file = _token(home, options, public)

    def gates() -> tuple[str, ...]:
        return gates_of(ctx, gate)

    context = ApiContext(
        home,
        gates=gates,
        start_scheduler=lambda: keeper(ctx, gates())(),
        allow_paths=options.allow_paths,
        reach=OWNER_URL_REACH if options.allow_paths else OTHERS_URL_REACH,
        send_action=send_action(home, gates),
    )
    rules = AccessRules(
        names=_names(options.hosts, options.names),
        token=token,
        is_own=None if public or options.token_file else is_own,
    )
    app = make_app(context, rules, routers(home, gates))
    sockets = bind(options.hosts, options.port)
    check = partial(check_devices, home, gates=gates)
    schedules = Schedules(home, context.open_store, fetching(home), check)
    host, port = sockets[0].getsockname()[:2]
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, app, sockets)
            nursery.start_soon(schedules.run, context.wake_scheduler)
            nursery.start_soon(context.keep_scheduler_alive)
            _announce(f"http://{f'[{host}]' if ':' in host else host}:{port}/", token, token_file)
            yield
            nursery.cancel_scope.cancel()
    finally:
        context.close()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise CampaignError(
            f"--host: {host!r} is not an IP address", hint="such as 127.0.0.1, 0.0.0.0 or ::"
        ) from None


def _names(hosts: Sequence[str], names: Sequence[str]) -> frozenset[str]:
    """Accepted Host headers: loopback, the listening addresses, and all of this machine's addresses if it listens on all."""
    import psutil

    accepted = {"localhost", *LOOPBACK, *(name.lower() for name in names)}
    accepted.update(str(ipaddress.ip_address(host)) for host in hosts)
    if any(ipaddress.ip_address(host).is_unspecified for host in hosts):
        for addresses in psutil.net_if_addrs().values():
            accepted.update(item.address.partition("%")[0].lower() for item in addresses)
    return frozenset(accepted)


def _token(home: Home, options: ServeOptions, public: bool) -> tuple[str | None, Path]:
    """(token, its file): the token in the options' file, else this home's own; None: the options ask for no token.

    Raises `ResourceError`, `CampaignError`.
    """
    from web.http.middleware import own_token, read_token

    own = home.folder("scheduler") / "api-token"
    if options.no_token and (public or options.token_file):
        raise CampaignError(
            "--no-token is for loopback, and not together with --token-file",
            hint="sark-node serve --no-token, or sark-node serve --host ADDRESS with the token that it prints",
        )
    if options.no_token:
        return None, own
    file = options.token_file
    return (read_token(file), file) if file is not None else (own_token(own), own)


def _announce(url: str, token: str | None, token_file: Path) -> None:
    """Print the addresses. The token itself is printed only on a terminal, because other output may be a log."""
    show = token is not None and sys.stdout.isatty()
    print(f"Dashboard  {url}{'#token=' + quote(token or '', safe='') if show else ''}", flush=True)
    if token is None:
        print("No token   every user and program of this machine can read and submit as you", flush=True)
    elif not show:
        print(f"Token      in {token_file}", flush=True)
    print(f"API        {url}docs", flush=True)
