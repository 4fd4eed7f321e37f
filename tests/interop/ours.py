"""What peers of other libp2p implementations talk to."""

from __future__ import annotations

from typing import Final

from swarm.join.host import HostNetwork
from swarm.net.network import Stream

LOOPBACK: Final = "/ip4/127.0.0.1/tcp/0"
ECHO: Final = "/sark/echo/1"
PING: Final = "/ipfs/ping/1.0.0"
PING_SIZE: Final = 32
HOP: Final = "/libp2p/circuit/relay/0.2.0/hop"


async def echo(stream: Stream) -> None:
    while data := await stream.receive_some():
        await stream.send_all(data)


def full_address(network: HostNetwork) -> str:
    return f"{network.addresses[0]}/p2p/{network.peer_id}"
