"""A port mapping on the router: created, renewed and removed, and one line when it is not possible. The router is a double."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from swarm.net.addresses import Address
from swarm.reach.upnp import LEASE_S, RENEW_S, RETRY_S, Mapping, NoMapping, UpnpRouter, keep_port_open


class Box:
    """Stands in for `miniupnpc.UPnP()`: a router with the quirks of real ones."""

    def __init__(
        self,
        *,
        answers: int = 1,
        external: str = "8.8.4.4",
        taken: tuple[int, ...] = (),
        leases: bool = True,
        broken: str = "",
    ) -> None:
        self.discoverdelay = 0
        self.lanaddr = "192.168.1.7"
        self.answers, self.external, self.taken, self.leases, self.broken = (
            answers,
            external,
            taken,
            leases,
            broken,
        )
        self.open: dict[int, tuple[str, int, int]] = {}

    def discover(self) -> int:
        return self.answers

    def selectigd(self) -> None:
        if self.broken:
            raise Exception(self.broken)  # noqa: TRY002  as the library does

    def externalipaddress(self) -> str:
        return self.external

    def addportmapping(
        self, port: int, protocol: str, host: str, inner: int, what: str, remote: str, lease: int
    ) -> bool:
        if port in self.taken:
            raise Exception("ConflictInMappingEntry")  # noqa: TRY002
        if lease and not self.leases:
            raise Exception("OnlyPermanentLeasesSupported")  # noqa: TRY002
        assert protocol == "TCP"
        self.open[port] = (host, inner, lease)
        return True

    def deleteportmapping(self, port: int, protocol: str) -> bool:
        return self.open.pop(port, None) is not None


def test_a_router_that_answers_sends_the_same_port_to_us_for_a_while() -> None:
    box = Box()
    assert UpnpRouter(lambda: box).add(4001) == Mapping("8.8.4.4", 4001, 4001)
    assert box.open == {4001: ("192.168.1.7", 4001, LEASE_S)}


def test_a_port_that_is_anothers_is_left_to_him_and_the_next_one_is_taken() -> None:
    box = Box(taken=(4001, 4002))
    mapping = UpnpRouter(lambda: box).add(4001)
    assert (mapping.address, box.open[4003]) == ("/ip4/8.8.4.4/tcp/4003", ("192.168.1.7", 4001, LEASE_S))


def test_a_router_that_knows_no_leases_is_asked_without() -> None:
    box = Box(leases=False)
    UpnpRouter(lambda: box).add(4001)
    assert box.open[4001][2] == 0


@pytest.mark.parametrize(
    ("box", "why"),
    [
        (Box(answers=0), "no router answers"),
        (Box(broken="no IGD"), "no IGD"),
        (Box(external="<script>"), "says its address is"),
        (Box(taken=tuple(range(4001, 4011))), "ConflictInMappingEntry"),
    ],
)
def test_an_error_is_one_line(box: Box, why: str) -> None:
    with pytest.raises(NoMapping, match=why):
        UpnpRouter(lambda: box).add(4001)


async def test_the_mapping_is_renewed_and_removed_at_the_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    autojump_clock.autojump_threshold = (
        0.05  # the router is called in a thread, which the clock does not know
    )
    box, mapped, result = Box(), list[Address | None](), list[str]()
    with trio.move_on_after(3 * RENEW_S + 1):
        await keep_port_open(4001, mapped.append, result.append, router=UpnpRouter(lambda: box))
    assert mapped == ["/ip4/8.8.4.4/tcp/4001"] * 4
    assert result == ["the router forwards port 4001 of 8.8.4.4 to this device (UPnP)"]
    assert box.open == {}


async def test_a_router_that_does_not_do_it_is_asked_now_and_then_and_complained_of_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    autojump_clock.autojump_threshold = 0.05
    rng, box, mapped, result = random.Random(1), Box(answers=0), list[Address | None](), list[str]()
    with trio.move_on_after(10 * RETRY_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: keep_port_open(4001, mapped.append, result.append, router=UpnpRouter(lambda: box))
            )
            await trio.sleep(rng.uniform(3, 4) * RETRY_S)
            box.answers = 1
    assert len(result) == 2
    assert "no router answers to UPnP here" in result[0]
    assert mapped[-1] == "/ip4/8.8.4.4/tcp/4001"


def test_a_router_behind_another_one_is_reported() -> None:
    assert "behind another router" in str(Mapping("100.64.0.3", 4001, 4001))
    assert "behind another router" not in str(Mapping("8.8.4.4", 4001, 4001))
