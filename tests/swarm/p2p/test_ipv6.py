"""Over IPv6, on `::1`: connecting, being dialled back, the advert, and the index."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack

import pytest
import trio
from libp2p.io.trio import TrioTCPStream

from protocol.values.advert import Advert
from swarm.index.index import Index
from swarm.join.host import HostNetwork, open_host
from swarm.net.addresses import Contact
from swarm.net.identity import Identity
from swarm.p2p.hardening import harden
from swarm.reach.autonat import AutoNatServer
from swarm.reach.keeper import ReachKeeper
from swarm.reach.reachability import Reach

HERE = "/ip6/::1/tcp/0"


@pytest.mark.real
async def test_a_node_that_listens_on_ipv6_alone_is_dialled_back_and_found_by_its_ipv6_address() -> None:
    with trio.fail_after(30):
        async with AsyncExitStack() as stack:
            gate: HostNetwork = await stack.enter_async_context(
                open_host(Identity.from_seed("v6 gate"), listen=[HERE])
            )
            way = f"{gate.addresses[0]}/p2p/{gate.peer_id}"
            contact = Contact(gate.peer_id, gate.addresses)
            node = await stack.enter_async_context(
                open_host(Identity.from_seed("v6 node"), listen=[HERE], bootstrap=[way])
            )
            seeker = await stack.enter_async_context(
                open_host(Identity.from_seed("v6 seeker"), bootstrap=[way])
            )
            nursery = await stack.enter_async_context(trio.open_nursery())
            keeper = ReachKeeper(node, lambda: [contact], rng=random.Random(1), wall=lambda: 0.0)
            indexes = [
                Index(gate, rng=random.Random(1), remote_address=gate.remote_address),
                Index(node, rng=random.Random(2), remote_address=node.remote_address, reach=keeper),
                Index(seeker, rng=random.Random(3)),
            ]
            for index in indexes:
                await nursery.start(index.run)
            AutoNatServer(
                gate.remote_address,
                lambda peer, address: gate.knock(peer, address),
                serving=lambda: True,
                wall=lambda: 0.0,
                meet=indexes[0].introduce,
            ).serve(gate)
            assert str(gate.remote_address(node.peer_id)).startswith("/ip6/::1/tcp/")
            await nursery.start(keeper.run)
            while keeper.reach is not Reach.DIRECT:
                await trio.sleep(0.05)
            assert keeper.addresses == node.addresses
            assert node.addresses[0].startswith("/ip6/::1/tcp/")
            advert = Advert(peer=node.peer_id, seq=0, device="six", name="six")
            while not await indexes[1].publish(advert):
                await trio.sleep(0.1)
            (result,) = (await indexes[2].everybody()).devices
            assert result.advert.addresses == node.addresses
            await seeker.connect(node.peer_id, result.advert.addresses)
            path = seeker.path(node.peer_id)
            assert path is not None
            assert path.direct
            nursery.cancel_scope.cancel()


class Socket:
    """What a connection's socket reports about the other end."""

    def __init__(self, name: object) -> None:
        self._name = name
        self.socket = self

    def getpeername(self) -> object:
        if self._name is None:
            raise OSError("gone")
        return self._name


@pytest.mark.parametrize(
    ("name", "address"),
    [
        (("192.0.2.7", 4001), ("192.0.2.7", 4001)),
        (("2606:4700::1111", 4001, 0, 0), ("2606:4700::1111", 4001)),
        (("fe80::1%eth0", 4001, 0, 2), ("fe80::1", 4001)),
        (("::ffff:192.0.2.7", 4001, 0, 0), ("192.0.2.7", 4001)),
        ("", None),
        (None, None),
    ],
)
def test_it_is_known_where_a_connection_comes_from_by_either_kind_of_address(
    name: object, address: tuple[str, int] | None
) -> None:
    """Otherwise the limits on connections and places would count it under the wrong network."""
    harden()
    stream = TrioTCPStream(Socket(name))  # type: ignore[arg-type]
    assert stream.get_remote_address() == address
