"""A node stays reachable whatever happens to its gates: in a simulated network with NATs, cuts and restarts, on a clock that jumps."""

from __future__ import annotations

import errno
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest
import trio
import trio.testing

from protocol.messages import index as index_messages
from protocol.messages.reach import REACH, DialBack, DialBackReply
from protocol.values.advert import Advert, SignedAdvert, advert_body, advert_message
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason
from swarm.index.index import Index
from swarm.memory.network import MemoryNetwork, MemorySwarm
from swarm.net.addresses import Contact
from swarm.net.identity import Identity, routing_key
from swarm.net.link import Link
from swarm.net.links import Links, serve_links
from swarm.net.reservations import RelayLimits, RelayReservations
from swarm.reach.autonat import AutoNatServer
from swarm.reach.keeper import ALONE_S, CALM_S, LOOK_S, ReachKeeper
from swarm.reach.reachability import Reach


@dataclass
class Field:
    """A simulated swarm, with gates that dial back and grant reservations."""

    swarm: MemorySwarm
    nursery: trio.Nursery
    gates: dict[str, Contact] = field(default_factory=dict)
    indices: dict[str, Index] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    out_of_files: bool = False

    def _interfaces(self, ips: tuple[str, ...]) -> tuple[str, ...]:
        if self.out_of_files:
            raise OSError(errno.EMFILE, "Too many open files")
        return ips

    async def gate(
        self, name: str, limits: RelayLimits | None = None, allow: Callable[[str], bool] = lambda peer: True
    ) -> MemoryNetwork:
        """Start a gate, or restart it with the same key at the same address."""
        network = self.swarm.node(Identity.from_seed(name))
        if name in self.gates:
            network._addresses = self.gates[name].addresses
        network.serve_relay(RelayReservations(limits, allow))
        index = self.indices[name] = Index(network, rng=random.Random(name))
        await self.nursery.start(index.run)
        AutoNatServer(
            network.remote_address,
            lambda peer, address: network.knock(peer, address),
            serving=lambda: True,
            wall=lambda: 0.0,
            meet=index.introduce,
        ).serve(network)
        self.gates[name] = Contact(network.peer_id, network.addresses)
        return network

    async def node(
        self, name: str, *gates: str, behind: str | None = None, ips: tuple[str, ...] = ()
    ) -> tuple[MemoryNetwork, ReachKeeper]:
        """A node with an index that knows these gates, connected to them."""
        network = self.swarm.node(Identity.from_seed(name), behind=behind)
        known = [self.gates[gate] for gate in gates]
        for gate in known:
            await network.connect(gate.peer, gate.addresses)
            network.table.learn(gate)
        keeper = ReachKeeper(
            network,
            lambda: known,
            rng=random.Random(name),
            wall=lambda: 0.0,
            ips=partial(self._interfaces, ips),
            tell=self.lines.append,
        )
        index = self.indices[name] = Index(network, rng=random.Random(name), reach=keeper)
        await self.nursery.start(index.run)
        await self.nursery.start(keeper.run)
        return network, keeper


@asynccontextmanager
async def playing(seed: int = 1) -> AsyncIterator[Field]:
    async with (
        MemorySwarm(random.Random(seed), latency_s=0.02) as swarm,
        trio.open_nursery() as nursery,
    ):
        yield Field(swarm, nursery)
        nursery.cancel_scope.cancel()


async def within(seconds: float, condition: Callable[[], object]) -> float:
    """Wait for a condition; returns how long it took."""
    began = trio.current_time()
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.05)
    return trio.current_time() - began


def circuits(keeper: ReachKeeper) -> int:
    return sum("/p2p-circuit" in address for address in keeper.addresses)


async def test_a_public_node_knows_it_at_once_and_makes_no_reservation(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with playing() as play:
        await play.gate("gate")
        network, keeper = await play.node("node", "gate")
        assert (keeper.reach, keeper.holder, keeper.addresses) == (Reach.UNKNOWN, True, network.addresses)
        await within(1, lambda: keeper.reach is Reach.DIRECT)
        await trio.sleep(30)
        assert network.reservations() == ()
        assert keeper.addresses == network.addresses
        assert play.lines == [f"this device can be dialled: {network.addresses[0]}"]


async def test_a_gate_that_serves_members_only_is_named_once_it_has_refused_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with playing() as play:
        members: set[str] = set()
        await play.gate("gate", allow=members.__contains__)
        network, _ = await play.node("node", "gate", behind="home")
        await trio.sleep(300)
        gate = play.gates["gate"].peer[-8:]
        assert [line for line in play.lines if gate in line] == [
            f"gate …{gate} does not serve this device: join with a ticket, or ask its operator to admit it"
        ]
        members.add(network.peer_id)
        await within(90, network.reservations)
        late, _ = await play.node("late", "gate", behind="home")
        await trio.sleep(10)  # the first refusal comes before it shows its ticket
        members.add(late.peer_id)
        before = len(play.lines)
        await within(90, late.reservations)
        assert not any("join with a ticket" in line for line in play.lines[before:])


async def test_a_node_behind_a_nat_holds_reservations_at_two_gates_and_nothing_for_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with playing() as play:
        for name in ("one", "two", "three"):
            await play.gate(name)
        network, keeper = await play.node("node", "one", "two", "three", behind="home")
        assert play.indices["node"].holding
        await within(8, lambda: circuits(keeper) == 2)
        assert keeper.reach is Reach.BEHIND
        assert not play.indices["node"].holding
        assert keeper.addresses[0] == network.addresses[0]  # for its neighbours on the LAN
        await trio.sleep(3700)
        assert len(network.reservations()) == 2


async def test_a_node_that_cannot_look_at_its_interfaces_goes_by_what_it_saw_last(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with playing() as play:
        await play.gate("gate")
        network, keeper = await play.node("node", "gate", behind="home", ips=("192.168.1.7",))
        await within(8, lambda: circuits(keeper) == 1)
        before = (keeper.addresses, keeper.reach)
        play.out_of_files = True
        await trio.sleep(60)
        play.swarm.kill(play.gates["gate"].peer)
        await play.gate("gate")
        await within(20, lambda: network.reservations())
        assert (keeper.addresses, keeper.reach) == before


async def test_reservations_are_made_again_within_seconds_after_a_gates_restart(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with playing() as play:
        gate = await play.gate("gate")
        network, keeper = await play.node("node", "gate", behind="home")
        await within(8, lambda: circuits(keeper) == 1)
        await trio.sleep(100)
        play.swarm.kill(gate.peer_id)
        await within(1, lambda: circuits(keeper) == 0)
        await trio.sleep(3)
        await play.gate("gate")
        assert await within(8, lambda: circuits(keeper) == 1) < 5
        caller = play.swarm.node(Identity.from_seed("caller"), behind="office")
        await caller.connect(network.peer_id, keeper.addresses)


async def test_reservations_are_made_again_within_seconds_after_a_silent_cut_of_twenty(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with playing() as play:
        gate = await play.gate("gate")
        network, keeper = await play.node("node", "gate", behind="home")
        await within(8, lambda: circuits(keeper) == 1)
        play.swarm.cut_silently(gate.peer_id, network.peer_id)
        await within(10, lambda: circuits(keeper) == 0)
        await trio.sleep(12)
        play.swarm.heal()
        assert await within(16, lambda: circuits(keeper) == 1) < 12
        assert keeper.reach is Reach.BEHIND


async def test_another_gate_replaces_one_that_is_full_or_gone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with playing() as play:
        await play.gate("full", RelayLimits(reservations=0))
        one = await play.gate("one")
        await play.gate("two")
        await play.gate("three")
        network, keeper = await play.node("node", "full", "one", "two", "three", behind="home")
        await within(8, lambda: circuits(keeper) == 2)
        held = {place.gate for place in network.reservations()}
        assert play.gates["full"].peer not in held
        play.swarm.kill(next(iter(held)))
        assert await within(5, lambda: circuits(keeper) == 2) < 4
        assert one.peer_id in held | {place.gate for place in network.reservations()}


async def test_a_node_whose_router_lets_calls_in_at_last_notices_by_the_first_of_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with playing() as play:
        await play.gate("gate")
        network, keeper = await play.node("node", "gate", behind="home")
        await within(8, lambda: circuits(keeper) == 1)
        play.swarm.translate(network.peer_id, None)
        await trio.sleep(30)
        assert keeper.reach is Reach.BEHIND
        caller = play.swarm.node(Identity.from_seed("caller"))
        await caller.connect(network.peer_id, network.addresses)
        await within(65, lambda: keeper.reach is Reach.DIRECT)
        assert keeper.addresses == network.addresses
        assert play.indices["node"].holding


async def test_a_node_that_is_shut_in_while_it_runs_stops_holding_and_is_found_all_the_same(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with playing() as play:
        await play.gate("gate")
        network, keeper = await play.node("node", "gate")
        other, _ = await play.node("other", "gate")
        index = play.indices["node"]
        await within(2, lambda: keeper.reach is Reach.DIRECT)
        await index.publish(Advert(peer=network.peer_id, seq=0, device="d", name="node"))
        await play.indices["other"].publish(Advert(peer=other.peer_id, seq=0, device="e", name="other"))
        play.swarm.translate(network.peer_id, "home")
        await within(620, lambda: keeper.reach is Reach.BEHIND)
        await within(10, lambda: circuits(keeper) == 1)
        await index.publish(Advert(peer=network.peer_id, seq=0, device="d", name="node"))
        await trio.sleep(60)
        await play.node("seeker", "gate")
        result = await play.indices["seeker"].everybody()
        by_key = {sighting.advert.name: sighting.advert.addresses for sighting in result.devices}
        assert set(by_key) == {"node", "other"}
        assert by_key["node"] == keeper.addresses
        assert network.peer_id not in {c.peer for c in await play.indices["seeker"].nearest(b"\0" * 32)}


async def test_a_swarm_whose_gates_are_all_on_the_lan_works_as_if_everybody_could_be_dialled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with playing() as play:
        await play.gate("gate")
        network, keeper = await play.node("node", "gate", ips=("10.0.0.2",))
        await within(1, lambda: keeper.reach is Reach.DIRECT)
        assert keeper.state.far_at is None
        assert (keeper.addresses, play.lines) == (network.addresses, [])


async def test_without_any_gate_nothing_is_asked_and_everything_is_as_before(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with playing() as play:
        network, keeper = await play.node("node", behind="home")
        await trio.sleep(1000)
        assert (keeper.reach, keeper.holder, keeper.addresses) == (Reach.UNKNOWN, True, network.addresses)


async def test_when_all_gates_are_gone_a_node_serves_its_lan_until_one_is_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with playing() as play:
        gate = await play.gate("gate")
        _, keeper = await play.node("node", "gate", behind="home")
        await within(8, lambda: not keeper.holder)
        play.swarm.kill(gate.peer_id)
        await trio.sleep(ALONE_S / 2)
        assert not keeper.holder
        await within(ALONE_S, lambda: keeper.holder)
        await play.gate("gate")
        await within(15, lambda: not keeper.holder)


async def test_who_waits_for_a_change_is_woken_by_it(autojump_clock: trio.testing.MockClock) -> None:
    async with playing() as play:
        await play.gate("gate")
        _, keeper = await play.node("node", "gate", behind="home")
        with trio.fail_after(10):
            while keeper.reach is not Reach.BEHIND or not circuits(keeper):
                await keeper.changed()


async def test_a_node_looks_each_second_only_while_something_is_missing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with playing() as play:
        gate = await play.gate("gate")
        _, keeper = await play.node("node", "gate", behind="home")
        known, looks = keeper.gates, set[float]()

        def gates() -> Sequence[Contact]:
            looks.add(trio.current_time())
            return known()

        keeper.gates = gates
        await within(8, lambda: circuits(keeper) == 1)
        await trio.sleep(CALM_S)
        looks.clear()
        await trio.sleep(20 * CALM_S)
        assert len(looks) <= 21
        play.swarm.kill(gate.peer_id)
        await trio.sleep(CALM_S)
        looks.clear()
        await trio.sleep(20 * LOOK_S)
        assert len(looks) >= 19


async def test_a_port_that_the_router_was_made_to_forward_is_asked_about_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with playing() as play:
        await play.gate("gate")
        network, keeper = await play.node("node", "gate", behind="home")
        await within(8, lambda: circuits(keeper) == 1)
        play.swarm.translate(network.peer_id, None)
        keeper.mapped("/ip4/8.8.4.4/tcp/4001")
        await within(2, lambda: keeper.reach is Reach.DIRECT)
        assert 4001 in keeper.ports()


async def test_two_gates_without_a_link_make_one_swarm_through_nodes_that_nobody_can_dial(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with playing() as play:
        await play.gate("one")
        await play.gate("two")
        await play.node("both", "one", "two", behind="home")
        left, _ = await play.node("left", "one", behind="office")
        await play.node("right", "two", behind="lab")
        await trio.sleep(10)
        await play.indices["left"].publish(Advert(peer=left.peer_id, seq=0, device="l", name="left"))
        await trio.sleep(20)
        result = await play.indices["right"].everybody()
        assert [sighting.advert.name for sighting in result.devices] == ["left"]


async def test_a_neighbour_that_knows_no_gate_finds_the_swarm_through_a_node_that_cannot_be_dialled_from_outside(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with playing() as play:
        await play.gate("gate")
        node, keeper = await play.node("node", "gate", behind="home")
        far, _ = await play.node("far", "gate", behind="office")
        for name, network in (("node", node), ("far", far)):
            await play.indices[name].publish(Advert(peer=network.peer_id, seq=0, device=name, name=name))
        await within(8, lambda: not keeper.holder)
        await trio.sleep(10)
        neighbour, _ = await play.node("neighbour", behind="home")
        await neighbour.connect(node.peer_id, node.addresses)
        play.indices["neighbour"].introduce(Contact(node.peer_id, node.addresses))
        await trio.sleep(2)
        result = await play.indices["neighbour"].everybody()
        assert {sighting.advert.name for sighting in result.devices} == {"node", "far"}


async def test_adverts_are_back_at_a_restarted_gate_within_seconds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with playing() as play:
        gate = await play.gate("gate")
        node, keeper = await play.node("node", "gate", behind="home")
        await play.indices["node"].publish(Advert(peer=node.peer_id, seq=0, device="d", name="node"))
        await within(8, lambda: not keeper.holder)
        await trio.sleep(100)
        play.swarm.kill(gate.peer_id)
        await trio.sleep(7)
        await play.gate("gate")
        # in the real network `bootstrap` does this
        await within(12, lambda: gate.peer_id in node.connected())
        node.table.learn(play.gates["gate"])
        await within(12, lambda: play.indices["gate"].holder.nodes == 1)


@pytest.mark.parametrize("seed", range(2))
async def test_whatever_happens_to_gates_and_links_a_node_is_reachable_again_within_half_a_minute(
    autojump_clock: trio.testing.MockClock, seed: int
) -> None:
    """Gates come and go and links are cut for most of an hour. Then all faults end, and the node is reachable too."""
    rng = random.Random(seed)
    async with playing(seed) as play:
        for name in ("one", "two", "three"):
            await play.gate(name)
        network, keeper = await play.node("node", "one", "two", "three", behind="home")
        down: set[str] = set()
        for _ in range(40):
            await trio.sleep(rng.uniform(1, 120))
            name = rng.choice(["one", "two", "three"])
            peer = play.gates[name].peer
            match rng.randrange(4):
                case 0 if name not in down:
                    play.swarm.kill(peer)
                    down.add(name)
                case 1 if name in down:
                    await play.gate(name)
                    down.discard(name)
                case 2:
                    play.swarm.cut_silently(peer, network.peer_id)
                case _:
                    play.swarm.heal()
        play.swarm.heal()
        for name in down:
            await play.gate(name)
        await within(30, lambda: circuits(keeper) == 2)
        caller = play.swarm.node(Identity.from_seed("caller"), behind="office")
        await caller.connect(network.peer_id, keeper.addresses)
        assert not keeper.holder


# -- gates that lie, and machines that move ------------------------------------------------------------------------------

VICTIM = "/ip4/8.8.8.8/tcp/51034"


async def lying_gate(play: Field, name: str) -> MemoryNetwork:
    """A gate that claims to have reached every asker, at an address that is not the asker's. It grants reservations as others do."""
    network = play.swarm.node(Identity.from_seed(name))
    network.serve_relay(RelayReservations())

    async def lie(link: Link, message: Message) -> Message:
        assert isinstance(message, DialBack)
        return DialBackReply(observed=VICTIM, reached=message.ports, wall_ms=0)

    serve_links(network, ProtocolId.REACH, REACH, lie)
    play.gates[name] = Contact(network.peer_id, network.addresses)
    return network


async def test_a_lying_gate_cannot_put_an_address_into_an_advert_nor_prevent_reservations(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with playing() as play:
        await play.gate("honest")
        await lying_gate(play, "liar")
        _, keeper = await play.node("node", "honest", "liar", behind="home")
        outcome = set[str]()

        async def listen() -> None:
            while True:
                outcome.update(keeper.addresses)
                await keeper.changed()

        play.nursery.start_soon(listen)
        await within(15, lambda: circuits(keeper) == 2)
        await trio.sleep(2000)
        assert circuits(keeper) == 2
        assert not keeper.holder
        assert not [address for address in outcome if "8.8.8.8" in address]


async def test_a_liar_that_answers_first_is_contradicted_by_a_slower_honest_gate(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with playing() as play:

        async def gate(name: str, delay_s: float, *, lies: bool) -> None:
            network = play.swarm.node(Identity.from_seed(name))
            network.serve_relay(RelayReservations())

            async def answer(link: Link, message: Message) -> Message:
                assert isinstance(message, DialBack)
                await trio.sleep(delay_s)
                return DialBackReply(observed=VICTIM, reached=message.ports if lies else (), wall_ms=0)

            serve_links(network, ProtocolId.REACH, REACH, answer)
            play.gates[name] = Contact(network.peer_id, network.addresses)

        await gate("honest", 3.8, lies=False)
        await gate("liar", 0.05, lies=True)
        _, keeper = await play.node("node", "honest", "liar", behind="home")
        # the received verdicts are applied without waiting for the slower gate
        await within(4, lambda: keeper.state.verdicts)
        await within(3, lambda: len(keeper.state.verdicts) == 2)
        await within(15, lambda: keeper.reach is Reach.BEHIND)
        await trio.sleep(2000)
        assert keeper.reach is Reach.BEHIND
        assert circuits(keeper) == 2


async def test_what_gates_report_of_an_address_that_a_machine_has_left_is_ignored(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with playing() as play:
        network = play.swarm.node(Identity.from_seed("slow"))
        event = trio.Event()

        async def slowly(link: Link, message: Message) -> Message:
            assert isinstance(message, DialBack)
            event.set()
            await trio.sleep(5.5)
            return DialBackReply(observed=VICTIM, reached=message.ports, wall_ms=0)

        serve_links(network, ProtocolId.REACH, REACH, slowly)
        play.gates["slow"] = Contact(network.peer_id, network.addresses)
        node, keeper = await play.node("node", "slow")
        keeper.ips = lambda: ("192.168.7.7",) if event.is_set() else ("192.168.1.7",)
        await event.wait()
        await trio.sleep(6)
        assert keeper.reach is Reach.UNKNOWN
        assert keeper.addresses == node.addresses
        await within(10, lambda: keeper.reach is Reach.DIRECT)  # the new place was asked about at once


async def test_a_gate_that_is_there_only_after_the_first_question_is_asked_as_soon_as_it_is_connected(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with playing() as play:
        gate = await play.gate("gate")
        play.swarm.kill(gate.peer_id)
        gone = play.gates["gate"]
        network = play.swarm.node(Identity.from_seed("early"))
        keeper = ReachKeeper(network, lambda: [gone], rng=random.Random(1), wall=lambda: 0.0, ips=lambda: ())
        await play.nursery.start(keeper.run)
        await trio.sleep(8)
        assert keeper.reach is Reach.UNKNOWN
        await play.gate("gate")
        await network.connect(gone.peer, gone.addresses)
        await within(3, lambda: keeper.reach is Reach.DIRECT)


async def test_a_node_behind_a_nat_keeps_nothing_for_anybody_whoever_asks_it_to(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with playing() as play:
        await play.gate("gate")
        node, keeper = await play.node("node", "gate", behind="home")
        other, _ = await play.node("other", "gate")
        await within(15, lambda: circuits(keeper))
        await trio.sleep(60)
        advert = Advert(peer=other.peer_id, seq=1, device="d", name="n")
        body = advert_body(advert)
        signed = SignedAdvert(body=body, signature=other.sign(advert_message(body)))
        links = Links(other, index_messages.FAMILY, index_messages.INDEX, play.nursery)
        for question in (
            index_messages.StoreAdverts(advert=signed, items=(index_messages.StoreItem(attribute="node"),)),
            index_messages.QueryShard(attribute="node"),
            index_messages.MarkSplit(attribute="node", depth=0, prefix=0),
        ):
            answer = await links.call(node.peer_id, keeper.addresses, question)
            assert isinstance(answer, index_messages.RefusedMessage)
            assert answer.reason is Reason.NOT_A_HOLDER
        assert play.indices["node"].holder.nodes == 0
        for name in ("gate", "other"):
            contacts = await play.indices[name].nearest(routing_key(node.peer_id))
            assert node.peer_id not in {contact.peer for contact in contacts}
