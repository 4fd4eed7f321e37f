"""The very edge of this machine for the tests of URLs: what is looked up and connected to by real sockets is noted, and led to one server.

The hooks are trio's own. A name has the answers that a test gives it, one after the other; whatever address is connected to, a server on
loopback answers that would tell its secret to anybody who gets there.
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
"""What a name resolves to when it is looked up first, second, … and from then on."""


@dataclass
class World(trio.abc.HostnameResolver, trio.abc.SocketFactory):
    """Names, and where connections really lead."""

    names: Mapping[str, Answers]
    port: int
    papers: Papers
    looked_up: list[str] = field(default_factory=list)
    connected: list[tuple[str, int]] = field(default_factory=list)

    def begin(self) -> None:
        """From now on, for this run of trio."""
        trio.socket.set_custom_hostname_resolver(self)
        trio.socket.set_custom_socket_factory(self)

    def edge(self) -> Edge:
        """The real one, but for the authority that signs its servers' certificates."""
        return Edge(
            resolve=self.look_up,
            transport=lambda proxy: httpx.AsyncHTTPTransport(verify=self.papers.client, trust_env=False),
        )

    async def look_up(self, host: str, port: int) -> Sequence[str]:
        """As `swarm.download.download.look_up`."""
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
    """A real socket that is led to the server, whatever its target."""

    def __init__(self, real: trio.socket.SocketType, world: World) -> None:
        self._real, self._world = real, world

    def __getattribute__(self, name: str) -> Any:
        if name in ("connect", "_real", "_world", "__class__"):
            return object.__getattribute__(self, name)
        return getattr(self._real, name)

    async def connect(self, address: Any) -> None:
        self._world.connected.append((address[0], address[1]))
        await self._real.connect(("127.0.0.1", self._world.port))
