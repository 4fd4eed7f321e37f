"""The list of devices: ids to copy, all units, why a device does not fit, and several workers of one device."""

from __future__ import annotations

import io
import math
import random
from dataclasses import replace

import pytest
from rich.console import Console

from protocol.values.advert import Advert, UnitOffer
from protocol.values.match import match
from protocol.values.requirement import Requirement, parse_clause
from results.analysis.sittings import IntervalCoverage
from scheduler.output.fleet import FleetTrust, ObservedDevice, coverage_lines, device_info, fleet_device
from scheduler.output.peers import peer_remarks, peers_table
from scheduler.preview.survey import visitor_token
from scheduler.trust.book import TrustBook
from swarm.memory.network import MemorySwarm
from swarm.net.identity import Identity
from swarm.net.network import Path


def seen(name: str, device: str, *clauses: str) -> ObservedDevice:
    advert = Advert(
        peer=Identity.from_seed(name).peer_id,
        seq=1,
        device=device,
        name=name,
        cores=2,
        ram=4 * 1024**3,
        units=(UnitOffer(unit="CPU (ONNX)", runtime="r"),),
    )
    requirement = Requirement(clauses=tuple(parse_clause(text) for text in clauses))
    return ObservedDevice(advert, None, "silence", match(requirement, advert))


def test_a_device_that_does_not_fit_keeps_its_units_and_shows_every_clause_it_misses() -> None:
    item = seen("bench-1", "d-one", "ram >= 8 GiB", "cores >= 4", "cores >= 1")
    for width in (80, 200):
        out = io.StringIO()
        Console(file=out, width=width).print(peers_table([item], width))
        assert ("d-one" if width > 80 else item.advert.peer[-8:]) in out.getvalue()
        assert "CPU (ONNX)" in out.getvalue()
    assert peer_remarks([item]) == [
        "bench-1 does not fit: ram: has 4 GiB, needs >= 8 GiB; cores: has 2, needs >= 4"
    ]


def test_each_device_is_shown_with_the_way_it_answered_by() -> None:
    gate = Identity.from_seed("gate").peer_id
    near = replace(seen("near", "d-1"), path=Path(True, None, 2.04))
    far = replace(seen("far", "d-2"), path=Path(False, gate, 41.0))
    out = io.StringIO()
    Console(file=out, width=200).print(peers_table([near, far], 200))
    assert "direct, 2 ms" in out.getvalue()
    assert f"via gate …{gate[-8:]}, 41 ms" in out.getvalue()
    assert device_info(far).model_dump()["path"] == {"direct": False, "gate": gate, "rtt_ms": 41.0}
    assert device_info(seen("silent", "d-3")).path is None


def test_a_device_is_shown_with_how_often_its_intervals_hold() -> None:
    known, new, few = seen("known", "d-1"), seen("new", "d-2"), seen("few", "d-3")
    held = {
        f"d-1 {known.advert.peer}": IntervalCoverage(47, 50, (0.01, 0.04, 0.02)),
        f"d-3 {few.advert.peer}": IntervalCoverage(4, 4),
        f"d-2 {known.advert.peer}": IntervalCoverage(
            9, 9
        ),  # another key claims this device id, so the intervals are not this device's
    }
    assert coverage_lines([known, new, few], held) == [
        "known: 47 of 50 intervals hold the median of its other sittings (94 %); extended by 2 % at both ends, 95 % do",
        "the target is 95 %; if fewer hold, measure in several sittings",
    ]
    assert coverage_lines([new, few], held) == []
    for shown in (device_info(known, held), fleet_device(known, {}, {}, held)):
        margin = pytest.approx(100 * math.expm1(0.02))
        known_of = {"share": 0.94, "held": 47, "sittings": 50, "margin_percent": margin}
        assert shown.model_dump()["coverage"] == known_of
    assert fleet_device(few, {}, {}, held).coverage is None
    assert device_info(new, held).coverage is None


def test_workers_that_share_a_device_are_shown_as_measured_once() -> None:
    items = [seen("a", "d-one"), seen("b", "d-one"), seen("c", "d-two")]
    assert peer_remarks(items) == [
        "2 workers share the device d-one: spread: device measures on one of them, spread: worker on each"
    ]
    assert peer_remarks(items[1:]) == []


async def test_a_stranger_that_claims_an_own_device_is_named_and_shares_nothing() -> None:
    own, clone = seen("own", "d-1"), seen("clone", "d-1")
    book = TrustBook("me", own=frozenset({own.advert.peer}))
    token = visitor_token(Identity.from_seed("scheduler"), own.advert.peer, now=0.0)
    one, other = await FleetTrust(lambda: book, token).judge(
        MemorySwarm(random.Random(1)).node(Identity.from_seed("me")), [own, clone]
    )
    assert (one.clash, device_info(one).clash) == ("", "")
    assert own.advert.peer in device_info(other).clash
    assert f"sark-node trust {clone.advert.peer} --same-device-as {own.advert.peer}" in other.clash
    assert peer_remarks([one, other]) == [other.clash]
    (line,) = peer_remarks([one, other, replace(other, advert=seen("third", "d-1").advert)])
    assert line.startswith("2 strangers' workers claim device ids of others")


def test_at_80_columns_a_direct_way_stands_on_one_line_beside_a_long_name() -> None:
    items = [replace(seen(name, "d-1"), path=Path(True, None, 53.4)) for name in ("lab-1", "n" * 64)]
    out = io.StringIO()
    Console(file=out, width=80).print(peers_table(items, 80))
    lines = out.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert sum("direct, 53 ms" in line for line in lines) == 2
