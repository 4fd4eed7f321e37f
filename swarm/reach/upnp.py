"""A port opened on the home's router by UPnP, only when the user asks for it (`--upnp`): made, renewed, and removed at the end.

miniupnpc blocks and knows no cancelling, so it works in a thread; it is imported only there. Whatever goes wrong is one line: a node
without a mapping is reached through a gate, as any other.
"""

from __future__ import annotations

import importlib
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import structlog
import trio

from swarm.net.addresses import Address

LEASE_S: Final = 3600
RENEW_S: Final = 1500.0
RETRY_S: Final = 600.0
DISCOVER_MS: Final = 2_000
REMOVE_WITHIN_S: Final = 2.0
OTHER_PORTS: Final = 3
"""Where the port is another device's already, so many of the next ones are tried."""

log = structlog.get_logger("sark.upnp")


class NoMapping(Exception):
    """There is no router that does it, or it said no; the text says why."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """What the router does for us."""

    external: str
    """Its address on the internet, as it says."""
    port: int
    """The port there."""
    inner: int
    """The port here."""

    @property
    def address(self) -> Address:
        """As others dial it."""
        return f"/ip4/{self.external}/tcp/{self.port}"

    @property
    def public(self) -> bool:
        """Whether the internet sees that address; else there is a second router behind the first."""
        return ipaddress.ip_address(self.external).is_global


class Router(Protocol):
    """What a router is asked; blocking, raising `NoMapping`."""

    def add(self, port: int) -> Mapping: ...

    def remove(self, mapping: Mapping) -> None: ...


class UpnpRouter:
    """The router that answers to UPnP on this LAN."""

    def __init__(self, make: Callable[[], Any] | None = None) -> None:
        """`make`: gives what `miniupnpc.UPnP()` would."""
        self._make = make

    def _igd(self) -> Any:
        if self._make is None:
            self._make = importlib.import_module("miniupnpc").UPnP  # a library in C that few ever need
        igd = self._make()
        igd.discoverdelay = DISCOVER_MS
        try:
            answering = _asked(igd.discover)
        except NoMapping:  # how the library says that nobody did
            answering = 0
        if not answering:
            raise NoMapping("no router answers to UPnP here")
        _asked(igd.selectigd)
        return igd

    def add(self, port: int) -> Mapping:
        igd = self._igd()
        external = str(_asked(igd.externalipaddress))
        try:
            ipaddress.ip_address(external)
        except ValueError:
            raise NoMapping(f"the router says its address is {external[:40]!r}") from None
        refused = ""
        for outer in range(port, min(port + OTHER_PORTS, 65_535) + 1):
            for lease in (LEASE_S, 0):  # some routers know no leases
                try:
                    if _asked(igd.addportmapping, outer, "TCP", igd.lanaddr, port, "sark-node", "", lease):
                        return Mapping(external, outer, port)
                except NoMapping as error:
                    refused = str(error)
        raise NoMapping(refused or "the router does not say why not")

    def remove(self, mapping: Mapping) -> None:
        _asked(self._igd().deleteportmapping, mapping.port, "TCP")


def _asked(question: Callable[..., Any], *args: object) -> Any:
    try:
        return question(*args)
    except Exception as error:  # miniupnpc raises nothing more precise
        raise NoMapping(str(error)[:200] or type(error).__name__) from error


async def keep_port_open(
    port: int,
    mapped: Callable[[Address | None], None],
    tell: Callable[[str], object],
    *,
    router: Router | None = None,
) -> None:
    """Have the router send `port` to this machine for as long as this runs. `mapped` is told the address, None when it is lost; `tell`
    a line for people."""
    request = router or UpnpRouter()
    mapping: Mapping | None = None
    text = ""
    try:
        while True:
            pause = RENEW_S
            try:
                mapping = await trio.to_thread.run_sync(request.add, mapping.inner if mapping else port)
                line = _line(mapping)
                mapped(mapping.address)
            except NoMapping as error:
                line = f"the router opens no port (UPnP): {error}; trying again now and then"
                pause, mapping = RETRY_S, None
                mapped(None)
            if line != text:
                text = line
                tell(line)
                log.info("upnp", told=line)
            await trio.sleep(pause)
    finally:
        if mapping is not None:
            with trio.move_on_after(REMOVE_WITHIN_S, shield=True):
                try:
                    remove = partial(request.remove, mapping)
                    await trio.to_thread.run_sync(remove, abandon_on_cancel=True)
                except NoMapping as error:
                    log.info("upnp.not-removed", why=str(error))


def _line(mapping: Mapping) -> str:
    if mapping.public:
        return f"the router sends port {mapping.port} of {mapping.external} to this device (UPnP)"
    return f"the router opened port {mapping.port} (UPnP), but is itself behind another one ({mapping.external}): of no use from outside"
