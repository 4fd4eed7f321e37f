"""The index over a simulated network: everybody is found, quickly, whichever nodes die, fall silent or lie."""

from __future__ import annotations

import random
from typing import Any

import pytest
import structlog.testing
import trio
import trio.testing

from protocol.errors import Refused, Unreachable
from protocol.messages import index as index_messages
from protocol.values.advert import Advert, SignedAdvert, UnitOffer, advert_body, advert_message
from protocol.values.index_keys import EVERYBODY, shard_key
from protocol.values.requirement import Clause, Op, Requirement
from protocol.wire.base import Message
from protocol.words import Reason
from swarm.index.client import SILENT_S, IndexClient
from swarm.index.index import EXPIRE_S, Index
from swarm.index.sweep import Sweeps
from swarm.memory.network import MemorySwarm
from swarm.net.addresses import Contact, PeerId
from swarm.net.cost import CALL_US, SHARES, PeerClass, Share
from swarm.net.identity import Identity, routing_key
from swarm.net.link import Link
from swarm.net.links import Links, serve_links
from tests.swarm.index.field import (
    CPU,
    EVERY_CPU,
    Jumping,
    Member,
    field,
    names,
    needs,
    publish_all,
)


async def test_one_gate_and_one_worker_find_each_other(autojump_clock: Jumping) -> None:
    async with field(1) as grown:
        (worker,) = await grown.grow(1)
        (scheduler,) = await grown.grow(1, holder=False)
        assert await worker.publish() == 2  # the gate and the worker itself
        result = await scheduler.index.query(EVERY_CPU, 16)
        assert names(result.devices) == {"node-1"}
        assert (result.total, result.complete) == (1, True)


async def test_a_worker_that_is_there_before_the_gate_is_found_soon_after(autojump_clock: Jumping) -> None:
    async with field(0) as grown:
        (worker,) = await grown.grow(1, holder=False)
        assert await worker.publish() == 0
        (gate,) = await grown.grow(1)
        grown.knows(worker, gate)
        await trio.sleep(3)
        assert names((await gate.index.query(EVERY_CPU, 1)).devices) == {"node-0"}


async def test_a_lone_node_gets_an_empty_answer(autojump_clock: Jumping) -> None:
    async with field(1) as grown:
        result = await grown.members[0].index.query(EVERY_CPU, 16)
        assert (result.devices, result.total, result.complete) == ((), 0, True)


async def test_a_node_without_any_way_out_knows_that_it_has_seen_nothing(autojump_clock: Jumping) -> None:
    async with field(0) as grown:
        (client,) = await grown.grow(1, holder=False)
        result = await client.index.query(EVERY_CPU, 16)
        assert (result.devices, result.complete) == ((), False)


async def test_everybody_publishes_and_everybody_is_found(autojump_clock: Jumping) -> None:
    async with field(24) as grown:
        await publish_all(grown.members)
        assert min(member.index.coverage for member in grown.members) >= 8
        for reader in grown.members[::8]:
            result = await reader.index.query(EVERY_CPU, 1000)
            assert len(result.devices) == 24
            assert result.complete
            assert result.total == 24


async def test_a_requirement_is_met_clause_by_clause(autojump_clock: Jumping) -> None:
    async with field(14) as grown:
        await publish_all(grown.members, lab=4)
        reader = grown.members[3].index
        both = await reader.query(needs(f'units has "{CPU}"', "label.lab == yes", "ram >= 30 GiB"), 16)
        assert names(both.devices) == {"node-2", "node-3"}
        assert both.attributes == (EVERYBODY,)  # one shard has all devices
        large = await reader.query(needs("ram >= 60 GiB"), 100)
        assert len(large.devices) == 3
        absent = await reader.query(needs("label.lab == no"), 16)
        assert (absent.devices, absent.complete) == ((), True)
        one = await reader.query(needs(f"peer == {grown.members[7].peer}"), 1)
        assert names(one.devices) == {"node-7"}


async def test_a_survey_shows_all_devices_or_those_of_the_rarest_attribute(autojump_clock: Jumping) -> None:
    async with field(14) as grown:
        await publish_all(grown.members, lab=5)
        impossible = needs(f'units has "{CPU}"', "label.lab == yes", "ram >= 900 GiB")
        index = grown.members[9].index
        assert len((await index.query(impossible, 16)).devices) == 0
        assert len((await index.survey(impossible, 100)).devices) == 14
        few = await index.survey(impossible, 6)
        assert names(few.devices) == {f"node-{number}" for number in range(5)}


async def test_a_query_for_a_few_of_many_asks_few(autojump_clock: Jumping) -> None:
    async with field(24) as grown:
        await publish_all(grown.members)
        reader = grown.members[20].index
        await reader.query(EVERY_CPU, 16)
        before, began = reader.calls, trio.current_time()
        result = await reader.query(EVERY_CPU, 16)
        assert len(result.devices) == 24  # half as many again, because some may be useless
        assert reader.calls - before <= 2
        assert trio.current_time() - began == pytest.approx(0.02)


async def test_a_first_lookup_takes_a_few_round_trips(autojump_clock: Jumping) -> None:
    async with field(32) as grown:
        await publish_all(grown.members)
        (client,) = await grown.grow(1, holder=False)
        began = trio.current_time()
        result = await client.index.query(EVERY_CPU, 16)
        assert len(result.devices) >= 16
        # dials cost six round trips of 20 ms each in this network: the gate, its neighbours, their neighbours, then the page
        assert trio.current_time() - began < 0.8
        assert client.index.calls <= 45


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.5])
async def test_the_living_are_found_after_many_died_at_once(share: float, autojump_clock: Jumping) -> None:
    async with field(24) as grown:
        await publish_all(grown.members)
        chance = random.Random(5)
        dead = chance.sample(grown.members[1:], int(24 * share))
        alive = [member for member in grown.members if member not in dead]
        grown.kill(dead)
        first = await alive[1].index.query(EVERY_CPU, 1000)
        assert names(first.devices) >= {f"node-{member.number}" for member in alive}
        await trio.sleep(40)  # the publishers of the other nodes notice the broken links by themselves
        for reader in chance.sample(alive, 4):
            result = await reader.index.query(EVERY_CPU, 1000)
            assert names(result.devices) >= {f"node-{member.number}" for member in alive}
        assert min(member.index.coverage for member in alive) >= 8
        await trio.sleep(870)
        last = await alive[2].index.query(EVERY_CPU, 1000)
        assert names(last.devices) == {f"node-{member.number}" for member in alive}


@pytest.mark.slow
async def test_a_silent_peer_costs_a_reader_no_more_than_the_hedge(autojump_clock: Jumping) -> None:
    async with field(14) as grown:
        await publish_all(grown.members)
        reader = grown.members[4]
        await reader.index.query(EVERY_CPU, 16)
        holders = await reader.index._lookups.holders(shard_key("", EVERYBODY, 0, 0))
        others = [contact.peer for contact in holders.contacts if contact.peer != reader.peer]
        worst = 0.0
        for silent in 2 * others[:-2]:  # a query asks two of the holders, by chance
            grown.swarm.cut_silently(reader.peer, silent)
            began = trio.current_time()
            result = await reader.index.query(EVERY_CPU, 8)
            worst = max(worst, trio.current_time() - began)
            assert len(result.devices) >= 8
            grown.swarm.heal()  # each of two silent holders costs a hedge
            await trio.sleep(2)
        assert 0.1 <= worst < 0.35


@pytest.mark.slow
async def test_a_peer_that_was_too_busy_to_answer_is_asked_again_soon_and_one_that_stays_so_less_and_less(
    autojump_clock: Jumping,
) -> None:
    async with field(6) as grown:
        await publish_all(grown.members)
        reader, busy = grown.members[4], grown.members[2].peer
        await reader.index.query(EVERY_CPU, 16)
        contact = next(
            one for one in reader.index._client.nearest(shard_key("", "x", 0, 0), 6) if one.peer == busy
        )
        question = index_messages.FindPeers(key=shard_key("", "x", 0, 0))
        waits: list[float] = []
        grown.swarm.cut_silently(reader.peer, busy)
        for _ in range(7):
            with pytest.raises(Unreachable):
                await reader.index._client.ask(contact, question, index_messages.FoundPeers)
            silent_since = trio.current_time()
            while not reader.index._client.usable(busy):
                await trio.sleep(0.5)
            waits.append(round(trio.current_time() - silent_since))
        assert waits[0] == 2
        assert (
            waits[0] < waits[1] <= 32
        )  # concurrent work asks it, too, so this may be the longest wait already
        assert 29 <= waits[-1] <= 66  # concurrent work may ask it and fail just before this look
        grown.swarm.heal()
        await reader.index._client.ask(contact, question, index_messages.FoundPeers)
        grown.swarm.cut_silently(reader.peer, busy)
        with pytest.raises(Unreachable):
            await reader.index._client.ask(contact, question, index_messages.FoundPeers)
        await trio.sleep(2.1)
        assert reader.index._client.usable(busy)


async def test_nodes_on_opposite_sides_of_the_earth_store_each_others_adverts(
    autojump_clock: Jumping,
) -> None:
    async with field(1, latency_s=0.15) as grown:
        (far,) = await grown.grow(1)
        assert await far.publish() == 2


@pytest.mark.slow
async def test_a_fresh_lookup_past_a_silent_peer_waits_for_the_hedge_only(autojump_clock: Jumping) -> None:
    async with field(14) as grown:
        await publish_all(grown.members)
        reader = grown.members[4]
        grown.swarm.cut_silently(reader.peer, grown.members[9].peer)
        began = trio.current_time()
        result = await reader.index.query(needs("device == device-13"), 1)
        assert names(result.devices) == {"node-13"}
        assert trio.current_time() - began < 0.7


async def test_a_newcomer_far_from_all_but_its_gate_finds_more_holders_than_the_gate(
    autojump_clock: Jumping,
) -> None:
    near = {Identity.from_seed(f"field {number}").peer_id for number in range(10)}
    gate = Identity.from_seed("field 0").peer_id

    def latency_s(a: PeerId, b: PeerId) -> float:
        return 0.01 if {a, b} <= near or gate in (a, b) else 0.05  # a first dial takes longer than the hedge

    async with field(10, latency_s=latency_s) as grown:
        await publish_all(grown.members)
        (newcomer,) = await grown.grow(1, holder=False)
        assert len(await newcomer.index.nearest(shard_key("", EVERYBODY, 0, 0))) >= 4


@pytest.mark.slow
async def test_a_node_that_leaves_says_so(autojump_clock: Jumping) -> None:
    async with field(14) as grown:
        await publish_all(grown.members)
        leaver = grown.members[8]
        assert await leaver.index.withdraw() >= 8
        result = await grown.members[2].index.query(EVERY_CPU, 1000)
        assert len(result.devices) == 13
        assert "node-8" not in names(result.devices)
        assert await leaver.publish() >= 8  # and may come back
        assert len((await grown.members[3].index.query(EVERY_CPU, 1000)).devices) == 14


@pytest.mark.slow
async def test_leaving_takes_no_longer_than_a_second_whoever_is_silent(autojump_clock: Jumping) -> None:
    async with field(12) as grown:
        await publish_all(grown.members)
        leaver = grown.members[8]
        grown.swarm.partition(
            [leaver.peer], [member.peer for member in grown.members if member is not leaver]
        )
        began = trio.current_time()
        await leaver.index.withdraw()
        assert round(trio.current_time() - began, 6) <= 1.0


async def test_an_advert_that_nobody_renews_is_gone_after_its_lifetime(autojump_clock: Jumping) -> None:
    async with field(12) as grown:
        (client,) = await grown.grow(1, holder=False)
        await client.publish()
        grown.kill([client])
        reader = grown.members[3].index
        assert len((await reader.query(EVERY_CPU, 16)).devices) == 1
        await trio.sleep(970)
        result = await reader.query(EVERY_CPU, 16)
        assert (result.devices, result.total) == ((), 0)
        assert all(member.index.holder.nodes == 0 for member in grown.members[:12])


async def test_an_advert_lives_on_while_its_node_does(autojump_clock: Jumping) -> None:
    async with field(12) as grown:
        await publish_all(grown.members)
        await trio.sleep(1000)
        assert len((await grown.members[3].index.query(EVERY_CPU, 100)).devices) == 12


async def test_a_laptop_that_wakes_up_is_found_again_within_seconds(autojump_clock: Jumping) -> None:
    async with field(1) as grown:
        slept = 0.0
        (laptop,) = await grown.grow(1, holder=False, asleep=lambda: slept)
        (gate,) = grown.members[:1]
        await laptop.publish()
        await trio.sleep(20)
        gate.index.holder.expire(trio.current_time() + 1000)  # the laptop's own clock was stopped
        await trio.sleep(30)
        assert (await gate.index.everybody()).devices == (), "it does not know yet that it slept"
        slept = 1000.0
        await trio.sleep(10)
        assert names((await gate.index.everybody()).devices) == {"node-1"}


async def test_a_changed_advert_is_seen_at_once_and_leaves_what_it_no_longer_says(
    autojump_clock: Jumping,
) -> None:
    async with field(12) as grown:
        await publish_all(grown.members)
        changer, reader = grown.members[5], grown.members[10].index
        await changer.publish(units=(UnitOffer(unit="NPU", runtime="r"),))
        assert names((await reader.query(needs("units has NPU"), 16)).devices) == {"node-5"}
        assert "node-5" not in names((await reader.query(EVERY_CPU, 100)).devices)


async def test_a_campaign_leads_to_the_nodes_that_hold_its_leases(autojump_clock: Jumping) -> None:
    async with field(12) as grown:
        await publish_all(grown.members)
        for member in grown.members[4:7]:
            await member.index.publish(member.advert(), campaigns=["c-1"])
        reader = grown.members[8].index
        assert names((await reader.campaign("c-1")).devices) == {"node-4", "node-5", "node-6"}
        await grown.members[4].index.publish(grown.members[4].advert())
        assert names((await reader.campaign("c-1")).devices) == {"node-5", "node-6"}


@pytest.mark.slow
async def test_squatters_of_one_network_get_eight_places(autojump_clock: Jumping) -> None:
    async with field(10) as grown:
        squatters = [Identity.from_seed(f"squatter {number}") for number in range(12)]
        for identity in squatters:
            node = grown.swarm.node(identity, False)
            node.table.learn(Contact(grown.members[0].peer, grown.members[0].network.addresses))
            index = Index(node, rng=random.Random(1))
            await grown.nursery.start(index.run)
            fake = Advert(
                peer=identity.peer_id,
                seq=1,
                device="squat",
                name="squat",
                addresses=("/ip4/8.8.8.8/tcp/4001",),
                units=(UnitOffer(unit=CPU, runtime="r"),),
            )
            await index.publish(fake)
        await publish_all(grown.members)
        result = await grown.members[3].index.query(EVERY_CPU, 1000)
        results = [sighting.advert.name for sighting in result.devices]
        assert results.count("squat") <= 8
        assert len(set(results)) == 11


@pytest.mark.slow
async def test_two_halves_find_each_other_again_after_a_partition(autojump_clock: Jumping) -> None:
    async with field(14) as grown:
        await publish_all(grown.members)
        left, right = grown.members[:7], grown.members[7:]
        grown.swarm.partition([m.peer for m in left], [m.peer for m in right])
        await trio.sleep(120)
        assert names((await left[3].index.query(EVERY_CPU, 100)).devices) >= {
            f"node-{m.number}" for m in left
        }
        assert names((await right[3].index.query(EVERY_CPU, 100)).devices) >= {
            f"node-{m.number}" for m in right
        }
        late = (await right[5].publish(labels={"late": "yes"}), right[5])
        assert late[0] >= 7
        grown.swarm.heal()
        await trio.sleep(30)
        assert names((await left[4].index.query(needs("label.late == yes"), 16)).devices) == {"node-12"}
        assert len((await left[5].index.query(EVERY_CPU, 100)).devices) == 14


# -- the routing table -----------------------------------------------------------------------------------------------------


def on_the_other_side(peer: PeerId, seed: str, count: int) -> list[Identity]:
    """Identities in the farthest bucket of `peer`."""
    side = routing_key(peer)[0] >> 7
    ids = (Identity.from_seed(f"{seed} {number}") for number in range(100))
    return [one for one in ids if routing_key(one.peer_id)[0] >> 7 != side][:count]


def answering(swarm: MemorySwarm, identity: Identity) -> Contact:
    """Start a node that answers every call and makes none."""

    async def found(link: Link, message: object) -> index_messages.FoundPeers:
        return index_messages.FoundPeers()

    node = swarm.node(identity)
    serve_links(node, index_messages.FAMILY, index_messages.INDEX, found)
    return Contact(node.peer_id, node.addresses)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop all nodes from looking around."""
    monkeypatch.setattr("swarm.index.index.LOOK_AROUND_S", (1e9, 1e9))


@pytest.mark.usefixtures("quiet")
async def test_holders_that_have_no_room_for_each_other_meet_once(
    autojump_clock: Jumping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.net.routing_table.BUCKET_SIZE", 1)
    async with field(1) as grown:
        a = grown.members[0]
        (other,) = on_the_other_side(a.peer, "b", 1)
        network = grown.swarm.node(other)
        b = Member(network, Index(network, rng=random.Random(1)), 1)
        await grown.nursery.start(b.index.run)
        for member in (a, b):
            (filler,) = on_the_other_side(member.peer, "filler", 1)
            member.index.introduce(answering(grown.swarm, filler))
            await trio.sleep(1)
            assert member.index.calls == 1
        a.index.introduce(Contact(b.peer, b.network.addresses))
        await trio.sleep(60)
        assert (a.index.calls, b.index.calls) == (2, 2)
        assert a.network.table.get(b.peer) is b.network.table.get(a.peer) is None
        grown.swarm.kill(b.peer)
        with pytest.raises(Unreachable):
            await a.index._client.ask(
                Contact(b.peer, network.addresses),
                index_messages.FindPeers(key=bytes(32)),
                index_messages.FoundPeers,
            )
        assert not a.index._client.met(b.peer)  # when it is back, it counts as new again


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("gone", [True, False])
async def test_a_newcomer_gets_the_place_of_one_that_is_gone_and_of_nobody_who_answers(
    autojump_clock: Jumping, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    monkeypatch.setattr("swarm.net.routing_table.BUCKET_SIZE", 4)
    async with field(1) as grown:
        gate = grown.members[0]
        contacts = [answering(grown.swarm, one) for one in on_the_other_side(gate.peer, "far", 12)]
        first, newcomers = contacts[:4], contacts[4:]
        for contact in first:
            gate.index.introduce(contact)
            await trio.sleep(1)
        table = gate.network.table
        assert all(table.get(contact.peer) for contact in first)
        if gone:
            grown.swarm.kill(first[0].peer)
        await trio.sleep(400)
        for contact in newcomers:
            gate.index.introduce(contact)
            await trio.sleep(10)
        known = [table.get(contact.peer) is not None for contact in contacts]
        assert known == [not gone, True, True, True, gone] + [False] * 7
        if not gone:
            assert (
                gate.index.calls == 4 + 8 + 4
            )  # each is met once, and the four are asked whether they are present


@pytest.mark.usefixtures("quiet")
async def test_holders_that_are_gone_leave_the_table_within_the_hour(autojump_clock: Jumping) -> None:
    async with field(1) as grown:
        gate = grown.members[0]
        contacts = [answering(grown.swarm, one) for one in on_the_other_side(gate.peer, "far", 24)]
        for contact in contacts:
            gate.index.introduce(contact)
            await trio.sleep(1)
        calls = gate.index.calls
        await trio.sleep(1500)
        assert gate.index.calls == calls
        await trio.sleep(1500)
        assert gate.index.calls == calls + 24
        for contact in contacts[:12]:
            grown.swarm.kill(contact.peer)
        await trio.sleep(3600)
        assert [gate.network.table.get(contact.peer) is not None for contact in contacts] == [False] * 12 + [
            True
        ] * 12


# -- peers that lie ------------------------------------------------------------------------------------------------------


async def test_a_holder_that_makes_things_up_is_not_believed(autojump_clock: Jumping) -> None:
    """A liar serves forged, expired and unfitting adverts under every key; none of them is ever shown."""
    async with field(6) as grown:
        await publish_all(grown.members)
        thief, victim = Identity.from_seed("thief"), Identity.from_seed("victim")

        def signed(by: Identity, **fields: object) -> SignedAdvert:
            plain: dict[str, object] = {"peer": victim.peer_id, "seq": 9, "device": "x", "name": "fake"}
            body = advert_body(Advert.model_validate(plain | fields))
            return SignedAdvert(body=body, signature=by.sign(advert_message(body)))

        units = (UnitOffer(unit=CPU, runtime="r"),)
        lies = (
            index_messages.ListedAdvert(advert=signed(thief, units=units), age_s=1.0),
            index_messages.ListedAdvert(advert=signed(victim, units=units), age_s=901.0),
            index_messages.ListedAdvert(advert=signed(victim), age_s=1.0),
            index_messages.ListedAdvert(advert=SignedAdvert(body=b"\xc1", signature=b"s" * 64), age_s=1.0),
        )

        async def lie(
            link: Link, message: object
        ) -> index_messages.FoundPeers | index_messages.ShardPage | index_messages.RefusedMessage:
            match message:
                case index_messages.FindPeers():
                    return index_messages.FoundPeers()
                case index_messages.QueryShard():
                    return index_messages.ShardPage(adverts=lies, matches=4, count=4)
                case _:
                    return index_messages.RefusedMessage(reason=Reason.DISK_FULL)

        liar = grown.swarm.node(thief)
        serve_links(liar, index_messages.FAMILY, index_messages.INDEX, lie)
        for member in grown.members:
            member.network.table.learn(Contact(liar.peer_id, liar.addresses))
        result = await grown.members[2].index.query(EVERY_CPU, 100)
        assert names(result.devices) == {f"node-{number}" for number in range(6)}


async def test_a_holder_of_an_older_version_is_not_asked_for_features_that_it_does_not_know(
    autojump_clock: Jumping,
) -> None:
    """According to such a holder no device has the features. So the reader checks them in the adverts."""
    async with field(4) as grown:
        await publish_all(grown.members)
        asked: set[str] = set()

        async def answer(
            link: Link, message: object
        ) -> index_messages.FoundPeers | index_messages.ShardPage | index_messages.RefusedMessage:
            match message:
                case index_messages.FindPeers():
                    return index_messages.FoundPeers()
                case index_messages.QueryShard():
                    asked.update(clause.attribute for clause in message.requirement.clauses)
                    return index_messages.ShardPage()
                case _:
                    return index_messages.RefusedMessage(reason=Reason.DISK_FULL)

        older = grown.swarm.node(Identity.from_seed("older"))
        serve_links(older, index_messages.FAMILY, index_messages.INDEX, answer)
        for member in grown.members:
            member.network.table.learn(Contact(older.peer_id, older.addresses))
        need = Requirement(clauses=(*EVERY_CPU.clauses, Clause(attribute="features", op=Op.HAS, value="x")))
        result = await grown.members[2].index.query(need, 100)
        assert result.devices == (), "none of them says that it has it"
        assert "features" not in asked
        assert "units" in asked


async def test_a_client_of_the_index_refuses_to_hold(autojump_clock: Jumping) -> None:
    async with field(2) as grown:
        (client,) = await grown.grow(1, holder=False)
        async with trio.open_nursery() as nursery:
            await grown.members[0].publish()
            await client.publish()
            serving = Links(grown.members[1].network, index_messages.FAMILY, index_messages.INDEX, nursery)
            # nobody can dial a client, but it has its own connection to the first node
            client_links = Links(
                grown.members[0].network, index_messages.FAMILY, index_messages.INDEX, nursery
            )
            answer = await client_links.call(client.peer, (), index_messages.QueryShard(attribute="node"))
            assert isinstance(answer, index_messages.RefusedMessage)
            assert answer.reason is Reason.NOT_A_HOLDER
            with pytest.raises(Unreachable):
                await serving.call(client.peer, (), index_messages.QueryShard(attribute="node"))
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("refused_s", "warned"), [(10.0, 0), (3000.0, 1)])
async def test_a_gate_that_goes_on_refusing_a_device_is_named_once(
    autojump_clock: Jumping, monkeypatch: pytest.MonkeyPatch, refused_s: float, warned: int
) -> None:
    async with field(2, refresh_s=30.0) as grown:
        gate, worker = grown.members
        ask, until = IndexClient.ask, trio.current_time() + refused_s
        gate_contact = Contact(gate.peer, gate.network.addresses)

        async def asked(
            client: IndexClient, contact: Contact, message: Message, *words: Any, **more: Any
        ) -> Any:
            if (
                isinstance(message, index_messages.StoreAdverts)
                and contact.peer == gate.peer
                and trio.current_time() < until
            ):
                raise Refused("members only", reason=Reason.NOT_ALLOWED)
            return await ask(client, contact, message, *words, **more)

        monkeypatch.setattr(IndexClient, "ask", asked)
        monkeypatch.setattr(worker.index._client, "anchors", lambda: (gate_contact,))
        with structlog.testing.capture_logs() as lines:
            await worker.publish()
            await trio.sleep(600)
        warnings = [line["event"] for line in lines if line["log_level"] == "warning"]
        assert (
            warnings
            == [
                f"gate …{gate.peer[-8:]} does not list this device: join with a ticket, or ask its operator to admit it"
            ]
            * warned
        )


async def test_a_node_that_publishes_nothing_forgets_who_was_silent(autojump_clock: Jumping) -> None:
    """Strangers can name as many nodes as they like."""
    async with field(1) as grown:
        gate = grown.members[0]
        client = gate.index._client
        nobody = [
            Contact(Identity.from_seed(f"nobody {n}").peer_id, ("/ip4/198.51.100.7/tcp/1",))
            for n in range(20)
        ]
        async with trio.open_nursery() as nursery:
            for contact in nobody:
                nursery.start_soon(client.check, contact)
        assert len(client._silent) == len(nobody)
        await trio.sleep(SILENT_S[1] + 2 * EXPIRE_S)
        assert not client._silent
        assert not client._gone


async def test_a_peer_that_asks_too_much_has_to_wait(autojump_clock: Jumping) -> None:
    async with field(2) as grown, trio.open_nursery() as nursery:
        links = Links(grown.members[1].network, index_messages.FAMILY, index_messages.INDEX, nursery)
        gate = grown.members[0]
        governor = gate.network.governor
        stranger = Share(per_s=10_000, burst=20_000)
        governor.shares = {**SHARES, PeerClass.STRANGER: stranger}
        answers: list[object] = []

        async def ask() -> None:
            question = index_messages.QueryShard(attribute="node")
            answers.append(await links.call(gate.peer, gate.network.addresses, question, max_wait_s=60))

        await ask()
        began, each = (
            trio.current_time(),
            CALL_US + gate.index.holder.page_cost_us(index_messages.QueryShard(attribute="node")),
        )
        async with trio.open_nursery() as asking:
            for _ in range(450):
                asking.start_soon(ask)
        assert governor.busy
        assert trio.current_time() - began >= (450 * each - stranger.burst) / stranger.per_s
        assert all(isinstance(answer, index_messages.ShardPage) for answer in answers)
        nursery.cancel_scope.cancel()


async def test_where_nodes_may_be_hidden_a_publisher_looks_thoroughly_once_after_it_stored(
    autojump_clock: Jumping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sweeps, "thin", lambda sweeps, key, near: True)
    async with field(14) as grown:
        lookups = grown.members[5].index._lookups
        looked: list[bool] = []
        honest = lookups.locate

        async def noted(key: bytes, *, thorough: bool = False) -> list[Contact]:
            looked.append(thorough)
            return await honest(key, thorough=thorough)

        monkeypatch.setattr(lookups, "locate", noted)
        await grown.members[5].publish()
        assert looked == [False, True]
