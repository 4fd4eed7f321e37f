"""The edge of this machine for the tests of URLs: lookups and connections by real sockets are recorded, and all connections lead to one
server.

The hooks are trio's own. A test gives each name its answers, one after the other. Whatever address is connected to, a server on loopback
answers, which would give its secret to anyone who reaches it.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import trio

from swarm.download.download import Edge
from tests.swarm.web_parts import Papers

Answers = Sequence[Sequence[str]]
"""The addresses that a name resolves to at the first lookup, the second, …; the last entry holds from then on."""


@dataclass
class World(trio.abc.HostnameResolver, trio.abc.SocketFactory):
    """Names, and the server to which connections really lead."""

    names: Mapping[str, Answers]
    port: int
    papers: Papers
    looked_up: list[str] = field(default_factory=list)
    connected: list[tuple[str, int]] = field(default_factory=list)

    def begin(self) -> None:
        """Install the hooks for this run of trio."""
        trio.socket.set_custom_hostname_resolver(self)
        trio.socket.set_custom_socket_factory(self)

    def edge(self) -> Edge:
        """The real edge, except for the authority that signs its servers' certificates."""
        return Edge(
            resolve=self.look_up,
            transport=lambda proxy: httpx.AsyncHTTPTransport(verify=self.papers.client, trust_env=False),
        )

    async def look_up(self, host: str, port: int) -> Sequence[str]:
        """Like `swarm.download.download.look_up`."""
        return [str(entry[4][0]) for entry in await self.getaddrinfo(host.encode("idna"), port)]

    async def getaddrinfo(
        self,
        host: bytes | None,
        port: bytes | str | int | None,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        await trio.lowlevel.checkpoint()
        name = (host or b"").decode()
        answers = self.names.get(name)
        if answers is None:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        now = answers[min(self.looked_up.count(name), len(answers) - 1)]
        self.looked_up.append(name)
        return [_entry(address, port) for address in now]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> tuple[str, str]:
        raise AssertionError("nobody asks for that")

    def socket(self, family: int = 0, type: int = 0, proto: int = 0) -> trio.socket.SocketType:
        plain = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        return _Led(trio.socket.from_stdlib_socket(plain), self)


def _entry(address: str, port: object) -> tuple[Any, ...]:
    if ipaddress.ip_address(address).version == 4:
        return (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
    return (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, port, 0, 0))


class _Led(trio.socket.SocketType):
    """A real socket that connects to the server, whatever its target."""

    def __init__(self, real: trio.socket.SocketType, world: World) -> None:
        self._real, self._world = real, world

    def __getattribute__(self, name: str) -> Any:
        if name in ("connect", "_real", "_world", "__class__"):
            return object.__getattribute__(self, name)
        return getattr(self._real, name)

    async def connect(self, address: Any) -> None:
        self._world.connected.append((address[0], address[1]))
        await self._real.connect(("127.0.0.1", self._world.port))
