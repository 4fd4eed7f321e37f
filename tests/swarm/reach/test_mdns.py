"""Neighbours on the LAN: what is announced, what is believed, and that none of it delays a node. A double plays mDNS."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

import pytest
import trio

from swarm.net.addresses import Address, Contact, PeerId
from swarm.net.identity import Identity
from swarm.reach import mdns
from swarm.reach.mdns import Lan, Zeroconfs, announcement, find_lan_contacts, neighbour

ME, OTHER, THIRD = (Identity.from_seed(name).peer_id for name in ("me", "other", "third"))
HOME = ("192.168.1.7/255.255.255.0", "fd00:1::7/64")


class Air:
    """The announcements on a LAN, by name."""

    def __init__(self, *, broken: bool = False) -> None:
        self.broken = broken
        self.sessions: list[Session] = []
        self.contacts: dict[str, Contact | None] = {}

    def __call__(self, peer: PeerId | None, addresses: Sequence[Address]) -> Session:
        return Session(self, peer, addresses)

    def say(self, name: str, contact: Contact | None) -> None:
        """Announce a contact."""
        self.contacts[name] = contact
        for session in self.sessions:
            session.names.put(name)


class Session:
    """Stands in for zeroconf."""

    def __init__(self, air: Air, peer: PeerId | None, addresses: Sequence[Address]) -> None:
        self.air, self.peer, self.addresses = air, peer, tuple(addresses)
        self.names: queue.Queue[str | None] = queue.Queue()
        self.left = threading.Event()

    def __enter__(self) -> Session:
        if self.air.broken:
            raise OSError("no multicast here")
        for name in self.air.contacts:
            self.names.put(name)
        self.air.sessions.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        self.names.put(None)
        self.left.set()

    def next(self, within_s: float | None = None) -> str | None:
        try:
            return self.names.get(timeout=None if within_s is None else min(within_s, 0.02))
        except queue.Empty:
            return None

    def resolve(self, name: str) -> Contact | None:
        return self.air.contacts[name]


def contact(peer: PeerId, number: int = 9) -> Contact:
    return Contact(peer, (f"/ip4/192.168.1.{number}/tcp/4001",))


async def test_neighbours_are_found_once_and_the_node_itself_and_nonsense_are_not() -> None:
    air, met = Air(), list[Contact]()
    third = trio.Event()

    async def found(each: Contact) -> bool:
        met.append(each)
        if each.peer == THIRD:
            third.set()
        return each.peer != OTHER

    air.say(f"{ME}.{mdns.SERVICE}", contact(ME))
    air.say(f"{OTHER}.{mdns.SERVICE}", contact(OTHER))
    air.say("nonsense", None)
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            node = Lan(ME, lambda: ("/ip4/192.168.1.7/tcp/4001",), found, session=air)
            nursery.start_soon(node.run)
            while not air.sessions:
                await trio.sleep(0.01)
            air.say(f"{OTHER}.{mdns.SERVICE}", contact(OTHER))
            air.say(f"{THIRD}.{mdns.SERVICE}", contact(THIRD))
            await third.wait()
            nursery.cancel_scope.cancel()
    assert sorted(each.peer for each in met) == sorted([OTHER, THIRD])
    assert set(node.neighbours) == {THIRD}  # the other one did not prove its key
    assert (air.sessions[0].peer, air.sessions[0].addresses) == (ME, ("/ip4/192.168.1.7/tcp/4001",))
    assert air.sessions[0].left.is_set()


async def test_where_there_is_no_multicast_the_node_goes_on_without() -> None:
    async def found(each: Contact) -> bool:
        return False

    with trio.move_on_after(0.2) as scope:
        await Lan(ME, tuple, found, session=Air(broken=True)).run()
    assert scope.cancelled_caught


async def test_a_flood_of_names_is_not_followed() -> None:
    air, met = Air(), list[Contact]()

    async def found(each: Contact) -> bool:
        met.append(each)
        return True

    for number in range(300):
        peer = Identity.from_seed(number).peer_id
        air.say(f"{peer}.{mdns.SERVICE}", contact(peer))
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Lan(ME, tuple, found, session=air).run)
            while not air.sessions or not air.sessions[0].names.empty():
                await trio.sleep(0.02)
            nursery.cancel_scope.cancel()
    assert len(met) <= mdns.MAX_NEIGHBOURS


def test_a_command_takes_a_glance_and_goes_on_as_soon_as_nobody_new_answers() -> None:
    air = Air()
    air.say("other", contact(OTHER))
    air.say("third", contact(THIRD, 10))
    air.say("nonsense", None)
    assert set(find_lan_contacts(session=air)) == {
        f"/ip4/192.168.1.9/tcp/4001/p2p/{OTHER}",
        f"/ip4/192.168.1.10/tcp/4001/p2p/{THIRD}",
    }
    assert air.sessions[0].left.is_set()
    assert air.sessions[0].peer is None  # a short-lived command announces nothing


def test_a_glance_where_there_is_nobody_or_no_multicast_finds_nobody() -> None:
    assert find_lan_contacts(0.05, session=Air()) == ()
    assert find_lan_contacts(0.05, session=Air(broken=True)) == ()


@pytest.mark.parametrize(
    ("peer", "ips", "port", "expected"),
    [
        (OTHER.encode(), ["192.168.1.9"], 4001, ("/ip4/192.168.1.9/tcp/4001",)),
        (OTHER.encode(), ["192.168.1.9", "8.8.8.8", "10.0.0.1"], 4001, ("/ip4/192.168.1.9/tcp/4001",)),
        (
            OTHER.encode(),
            ["8.8.8.8"],
            4001,
            None,
        ),  # another host's address, which this node would dial on a stranger's behalf
        (OTHER.encode(), ["127.0.0.1", "::1", "fe80::1%eth0", "nonsense"], 4001, None),
        (
            OTHER.encode(),
            ["fd00:1::9", "fd00:2::9", "2606:4700::1", "192.168.1.9"],
            4001,
            ("/ip6/fd00:1::9/tcp/4001", "/ip4/192.168.1.9/tcp/4001"),
        ),
        (OTHER.encode(), ["192.168.1.9"], 0, None),
        (OTHER.encode(), ["192.168.1.9"], 70_000, None),
        (b"\xff\xfe", ["192.168.1.9"], 4001, None),
        (b"12D3KooWnobody", ["192.168.1.9"], 4001, None),
        (b"", ["192.168.1.9"], 4001, None),
    ],
)
def test_of_what_a_stranger_says_only_addresses_on_our_own_networks_are_tried(
    peer: bytes, ips: list[str], port: int, expected: tuple[str, ...] | None
) -> None:
    result = neighbour(peer, ips, port, HOME)
    assert (result.addresses if result else None) == expected


def test_a_neighbour_with_a_hundred_addresses_is_tried_at_a_few() -> None:
    result = neighbour(OTHER.encode(), [f"192.168.1.{n}" for n in range(1, 101)], 4001, HOME)
    assert result is not None
    assert len(result.addresses) == mdns.MAX_ADDRESSES


def test_what_is_announced_is_the_peer_id_and_where_it_listens_on_the_lan() -> None:
    result = announcement(
        ME,
        [
            "/ip4/127.0.0.1/tcp/4001",
            "/ip4/192.168.1.7/tcp/4001",
            "/ip4/10.1.1.1/tcp/4001",
            "/ip6/fd00::1/tcp/4001",
        ],
    )
    assert result is not None
    assert result.parsed_addresses() == ["192.168.1.7", "10.1.1.1", "fd00::1"]
    assert (result.port, result.properties) == (4001, {b"peer": ME.encode()})
    assert announcement(ME, ["/ip4/127.0.0.1/tcp/4001"]) is None


def test_the_longest_name_that_is_announced_is_one_that_mdns_allows() -> None:
    """A label has at most 63 bytes, and the longest peer id has 52 letters."""
    result = announcement(ME, ["/ip4/192.168.1.7/tcp/4001"])
    assert result is not None
    assert max(len(label) for label in result.name.split(".")) <= 63
    assert isinstance(Zeroconfs(None, ()), Zeroconfs)  # creating it opens nothing


def test_who_waits_for_a_name_goes_on_when_the_session_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Quiet:
        def __init__(self, **options: object) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr(mdns, "Zeroconf", Quiet)
    monkeypatch.setattr(mdns, "ServiceBrowser", lambda *about, **options: None)
    heard: list[str | None] = []
    with Zeroconfs(None, ()) as session:
        waiting = threading.Thread(target=lambda: heard.append(session.next()), daemon=True)
        waiting.start()
    waiting.join(10)
    assert heard == [None]
