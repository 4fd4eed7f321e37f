"""The index over real libp2p hosts in one process: the same code, the same answers."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack

import pytest
import trio

from protocol.values.advert import Advert, UnitOffer
from protocol.values.requirement import Requirement, parse_clause
from swarm.index.index import Index
from swarm.join.host import HostNetwork, open_host
from swarm.net.identity import Identity

CPU = Requirement(clauses=(parse_clause('units has "CPU (ONNX)"'),))


def advert(network: HostNetwork, name: str) -> Advert:
    units = (UnitOffer(unit="CPU (ONNX)", runtime="r"),)
    return Advert(peer=network.peer_id, seq=0, device=name, name=name, ram=2**34, units=units)


@pytest.mark.real
async def test_a_client_finds_the_workers_through_a_gate_and_one_that_left_is_gone() -> None:
    async with AsyncExitStack() as stack:
        nursery = await stack.enter_async_context(trio.open_nursery())
        networks: list[HostNetwork] = []
        indexes: list[Index] = []
        for number in range(4):
            client = number == 3
            gate = [f"{networks[0].addresses[0]}/p2p/{networks[0].peer_id}"] if number else []
            network = await stack.enter_async_context(
                open_host(
                    Identity.from_seed(f"real {number}"),
                    listen=() if client else ("/ip4/127.0.0.1/tcp/0",),
                    bootstrap=gate,
                )
            )
            index = Index(network, rng=random.Random(number), incarnation=1)
            await nursery.start(index.run)
            networks.append(network)
            indexes.append(index)
        gate_index, first, second, scheduler = indexes
        assert (gate_index.holding, scheduler.holding) == (True, False)
        with trio.fail_after(20):
            await first.publish(advert(networks[1], "one"))
            await second.publish(advert(networks[2], "two"))
            while min(first.coverage, second.coverage) < 3:
                await trio.sleep(0.1)
            result = await scheduler.query(CPU, 16)
            assert {sighting.advert.name for sighting in result.devices} == {"one", "two"}
            assert result.complete
            assert all(sighting.advert.addresses for sighting in result.devices)
            assert await second.withdraw() >= 2
            after = await scheduler.query(CPU, 16)
            assert {sighting.advert.name for sighting in after.devices} == {"one"}
        nursery.cancel_scope.cancel()
