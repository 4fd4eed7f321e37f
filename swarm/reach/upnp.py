"""Opens a port on the home's router by UPnP if the user requests it (`--upnp`), renews the mapping, and removes it at the end.

miniupnpc blocks and cannot be cancelled, so it runs in a thread, and is imported only there. A failure costs one line: a node without a
mapping is reached through a gate, like any other.
"""

from __future__ import annotations

import importlib
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog
import trio

from swarm.base.threads import LAN
from swarm.net.addresses import Address

LEASE_S: Final = 3600
RENEW_S: Final = 1500.0
RETRY_S: Final = 600.0
DISCOVER_MS: Final = 2_000
REMOVE_WITHIN_S: Final = 2.0
OTHER_PORTS: Final = 3
"""If the port already belongs to another device, this many of the following ports are tried."""

log = structlog.get_logger("sark.upnp")


class NoMapping(Exception):
    """No router offers UPnP here, or it refused; the text says why."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """A forwarded port."""

    external: str
    """The router's internet address, as the router reports it."""
    port: int
    """The port on the router."""
    inner: int
    """The port on this machine."""

    @property
    def address(self) -> Address:
        """The address at which others dial this node."""
        return f"/ip4/{self.external}/tcp/{self.port}"

    def __str__(self) -> str:
        if ipaddress.ip_address(self.external).is_global:
            return f"the router forwards port {self.port} of {self.external} to this device (UPnP)"
        return (
            f"the router opened port {self.port} (UPnP), but is itself behind another router ({self.external}),"
            " so the port cannot be reached from outside"
        )


class UpnpRouter:
    """The router that answers UPnP on this LAN. Its methods block, and raise `NoMapping`."""

    def __init__(self, make: Callable[[], Any] | None = None) -> None:
        """`make`: returns the equivalent of `miniupnpc.UPnP()`."""
        self._make = make

    def _igd(self) -> Any:
        if self._make is None:
            self._make = importlib.import_module("miniupnpc").UPnP  # a C library that few users ever need
        igd = self._make()
        igd.discoverdelay = DISCOVER_MS
        try:
            answering = _call(igd.discover)
        except NoMapping:  # the library's way to say that no router answered
            answering = 0
        if not answering:
            raise NoMapping("no router answers to UPnP here")
        _call(igd.selectigd)
        return igd

    def add(self, port: int) -> Mapping:
        """Forward this port of the router, or one of the following, to `port` here."""
        igd = self._igd()
        external = str(_call(igd.externalipaddress))
        try:
            ipaddress.ip_address(external)
        except ValueError:
            raise NoMapping(f"the router says its address is {external[:40]!r}") from None
        refused = ""
        for outer in range(port, min(port + OTHER_PORTS, 65_535) + 1):
            for lease in (LEASE_S, 0):  # some routers do not support leases
                try:
                    if _call(igd.addportmapping, outer, "TCP", igd.lanaddr, port, "sark-node", "", lease):
                        return Mapping(external, outer, port)
                except NoMapping as error:
                    refused = str(error)
        raise NoMapping(refused or "the router does not say why not")

    def remove(self, mapping: Mapping) -> None:
        """Remove a mapping."""
        _call(self._igd().deleteportmapping, mapping.port, "TCP")


def _call(method: Callable[..., Any], *args: object) -> Any:
    try:
        return method(*args)
    except Exception as error:  # miniupnpc raises nothing more precise
        raise NoMapping(str(error)[:200] or type(error).__name__) from error


async def keep_port_open(
    port: int,
    mapped: Callable[[Address | None], None],
    tell: Callable[[str], object],
    *,
    router: UpnpRouter | None = None,
) -> None:
    """Have the router forward `port` to this machine while this runs. `mapped` is called with the address, and with None when the mapping
    is lost; `tell` is called with a line for the user."""
    router = router or UpnpRouter()
    mapping: Mapping | None = None
    line = ""
    try:
        while True:
            before, pause = line, RENEW_S
            try:
                mapping = await LAN.run(router.add, mapping.inner if mapping else port)
                line = str(mapping)
                mapped(mapping.address)
            except NoMapping as error:
                line = f"the router opens no port (UPnP): {error}; trying again from time to time"
                pause, mapping = RETRY_S, None
                mapped(None)
            if line != before:
                tell(line)
                log.info("upnp", line=line)
            await trio.sleep(pause)
    finally:
        if mapping is not None:
            with trio.move_on_after(REMOVE_WITHIN_S, shield=True):
                try:
                    await LAN.run(router.remove, mapping, abandon_on_cancel=True)
                except NoMapping as error:
                    log.info("upnp.not-removed", why=str(error))
