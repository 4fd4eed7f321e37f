"""What somebody types who wants a page or an API: serve."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote

import typer

from protocol.errors import CampaignError
from scheduler.cli.options import GATE, fetching, gates_of, keeper
from swarm.base.home import Home

if TYPE_CHECKING:
    from fastapi import APIRouter

    from web.http.context import Tell

PORT: Final = 5000
"""Where the first system's clients look."""
LOOPBACK: Final = ("127.0.0.1", "::1")
MAX_PORT: Final = 65535

Routers = Callable[[Home, Callable[[], tuple[str, ...]]], Sequence["APIRouter"]]
"""What a home's other roles offer, given its ways into the swarm; only the program knows them all."""
Telling = Callable[[Home, Callable[[], tuple[str, ...]]], "Tell"]
"""How a home's owner says something to a worker; only the program knows."""


@dataclass(frozen=True, slots=True)
class ServeTerms:
    """How a home is served."""

    hosts: tuple[str, ...] = LOOPBACK
    port: int = PORT
    names: tuple[str, ...] = ()
    """Host names by which others call this server."""
    token_file: Path | None = None
    allow_paths: bool = False

    @property
    def beyond(self) -> bool:
        """Whether others than this machine's users reach it."""
        return not all(_is_loopback(host) for host in self.hosts)


def add_serve(app: typer.Typer, routers: Routers, telling: Telling) -> None:
    """Give `app` the command `serve`."""

    @app.command(rich_help_panel="For all")
    def serve(
        ctx: typer.Context,
        host: Annotated[
            list[str] | None,
            typer.Option(
                help="Listen on this address. Repeatable.  \\[default: this machine alone]", metavar="ADDRESS"
            ),
        ] = None,
        port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = PORT,
        name: Annotated[
            list[str] | None,
            typer.Option(help="A host name by which others call this server. Repeatable."),
        ] = None,
        token_file: Annotated[
            Path | None,
            typer.Option(
                help="A file with the token that clients must send.  \\[default beyond this machine: one is made and kept]",
                dir_okay=False,
            ),
        ] = None,
        allow_paths: Annotated[
            bool,
            typer.Option(
                "--allow-paths",
                help="Campaigns sent here may name files of this machine, and URLs of its own networks.",
            ),
        ] = False,
        gate: Annotated[list[str] | None, GATE] = None,
    ) -> None:
        """Serve the dashboard and the HTTP API for this home's campaigns: on this machine alone, unless told otherwise."""
        import trio

        terms = ServeTerms(tuple(host or LOOPBACK), port, tuple(name or ()), token_file, allow_paths)

        async def run() -> None:
            async with serving(ctx, routers, telling, terms, gate):
                await trio.sleep_forever()

        trio.run(run)


def terms_of(text: str) -> ServeTerms:
    """What `join --serve` is given: `[HOST:]PORT[,NAME…]`; empty: this machine alone. Raises `CampaignError`."""
    where, *names = (part.strip() for part in text.split(","))
    host, _, port = where.rpartition(":")
    if not where:
        return ServeTerms(names=tuple(names))
    if not port.isdecimal() or int(port) > MAX_PORT:
        raise CampaignError(
            f"--serve: {where!r} has no port", hint="such as 127.0.0.1:5000, 0.0.0.0:5000 or [::]:5000"
        )
    return ServeTerms((host.strip("[]"),) if host else LOOPBACK, int(port), tuple(names))


@asynccontextmanager
async def serving(
    ctx: typer.Context, routers: Routers, telling: Telling, terms: ServeTerms, gate: list[str] | None
) -> AsyncIterator[None]:
    """This home is served for as long as the context lasts. Raises `CampaignError` and `ResourceError`."""
    import trio

    from scheduler.experiments.schedule import Schedules
    from swarm.download.urls import FOR_OTHERS, FOR_OWNER
    from web.app import make_app
    from web.http.context import ApiContext
    from web.http.middleware import AccessRules
    from web.http.server import bind, serve

    home: Home = ctx.obj
    token, kept = _token(home, terms.token_file, needed=terms.beyond)

    def gates_now() -> tuple[str, ...]:
        return gates_of(ctx, gate)

    desk = ApiContext(
        home,
        gates=gates_now,
        keep_alive=lambda: keeper(ctx, gates_now())(),
        allow_paths=terms.allow_paths,
        reach=FOR_OWNER if terms.allow_paths else FOR_OTHERS,
        tell=telling(home, gates_now),
    )
    rules = AccessRules(names=_names(terms.hosts, terms.names), token=token)
    app = make_app(desk, rules, routers(home, gates_now))
    sockets = bind(terms.hosts, terms.port)
    schedules = Schedules(home, desk.open_store, fetching(home))
    shown, actual = sockets[0].getsockname()[:2]
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, app, sockets)
            nursery.start_soon(schedules.keep, desk.wake)
            nursery.start_soon(desk.mind)
            url = f"http://{f'[{shown}]' if ':' in shown else shown}:{actual}/"
            _announce(url, token, kept)
            yield
            nursery.cancel_scope.cancel()
    finally:
        desk.close()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise CampaignError(
            f"--host: {host!r} is no address", hint="such as 127.0.0.1, 0.0.0.0 or ::"
        ) from None


def _names(hosts: Sequence[str], given: Sequence[str]) -> frozenset[str]:
    """What the Host header may say: loopback's names, the addresses listened on, those of this machine where it listens on all."""
    import psutil

    names = {"localhost", *LOOPBACK, *(name.lower() for name in given)}
    names.update(str(ipaddress.ip_address(host)) for host in hosts)
    if any(ipaddress.ip_address(host).is_unspecified for host in hosts):
        for addresses in psutil.net_if_addrs().values():
            names.update(item.address.partition("%")[0].lower() for item in addresses)
    return frozenset(names)


def _token(home: Home, file: Path | None, *, needed: bool) -> tuple[str | None, Path]:
    """The one in `file`, else this home's own where one is needed; and where it is kept. Raises `ResourceError`, `CampaignError`."""
    from web.http.auth import own_token, read_token

    own = home.folder("scheduler") / "api-token"
    if file is not None:
        return read_token(file), file
    return (own_token(own) if needed else None), own


def _announce(url: str, token: str | None, kept: Path) -> None:
    """Where to go. The token itself is for a person's eyes: what stands on no terminal stands in a log, and there none belongs."""
    shown = token is not None and sys.stdout.isatty()
    print(f"Dashboard  {url}{'#token=' + quote(token or '', safe='') if shown else ''}", flush=True)
    if token is not None and not shown:
        print(f"Token      in {kept}", flush=True)
    print(f"API        {url}docs", flush=True)
