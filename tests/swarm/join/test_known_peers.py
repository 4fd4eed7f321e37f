"""Recently present peers are stored in the home, and a damaged file of them does no harm."""

from __future__ import annotations

import random
from pathlib import Path

import trio
import trio.testing

from swarm.join.known_gates import ADDRESSES_EACH, MAX_PEERS, read_peers, write_addresses
from swarm.join.presence import FIRST_S, record_peers, select_peers
from swarm.memory.network import MemorySwarm
from swarm.net.addresses import Contact
from swarm.net.identity import Identity

OTHER = Identity.from_seed("other").peer_id


async def test_connected_holders_are_kept_and_found_again_at_the_next_start(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    path = tmp_path / "peers"
    async with MemorySwarm(random.Random(1)) as swarm, trio.open_nursery() as nursery:
        node, peer, gone = (swarm.node(Identity.from_seed(n)) for n in range(3))
        node.table.learn(Contact(gone.peer_id, gone.addresses))
        node.table.learn(Contact(peer.peer_id, peer.addresses))
        await node.connect(peer.peer_id, peer.addresses)
        nursery.start_soon(record_peers, node, path, random.Random(1))
        autojump_clock.autojump_threshold = 0.05
        await trio.sleep(FIRST_S + 1)
        while not read_peers(path):
            await trio.sleep(0.1)  # the file is written in a thread, which the clock does not speed up
        assert read_peers(path) == (f"{peer.addresses[0]}/p2p/{peer.peer_id}",)
        nursery.cancel_scope.cancel()


async def test_those_of_before_are_kept_behind_and_the_list_stays_short() -> None:
    before = [f"/ip4/10.9.{n >> 8}.{n & 255}/tcp/1/p2p/{OTHER}" for n in range(1000)]
    async with MemorySwarm(random.Random(1)) as swarm:
        node, peer = swarm.node(Identity.from_seed(0)), swarm.node(Identity.from_seed(1))
        node.table.learn(Contact(peer.peer_id, peer.addresses))
        await node.connect(peer.peer_id, peer.addresses)
        lines = select_peers(node, before, random.Random(1))
    assert lines[0] == f"{peer.addresses[0]}/p2p/{peer.peer_id}"
    assert lines[1:3] == tuple(before[:2])
    assert len(lines) == MAX_PEERS * ADDRESSES_EACH


def test_lines_that_make_no_sense_and_a_file_that_is_not_there_are_no_error(tmp_path: Path) -> None:
    good = f"/ip4/10.0.0.1/tcp/4001/p2p/{OTHER}"
    path = tmp_path / "peers"
    assert read_peers(path) == ()
    write_addresses(
        path,
        ["nonsense", good, "/ip4/10.0.0.1/tcp/4001/p2p/12D3KooWnobody", f"/ip4/0.0.0.0/tcp/1/p2p/{OTHER}"],
    )
    assert read_peers(path) == (good,)
    path.write_bytes(b"\xff\xff")
    assert read_peers(path) == ()
