"""What an operator sees: it fits a narrow terminal, and no text from a peer moves the cursor."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from rich.text import Text

from gate.status.view import shares, show_for, status_json, status_view
from protocol.messages.gate import ConnectedPeer, GateSnapshot, LiveCircuit, RelayCaps
from swarm.net.identity import Identity

GATE, A, B = (Identity.from_seed(name).peer_id for name in ("gate", "a", "b"))
CAPS = RelayCaps(
    reservations=1024,
    reservations_per_network=256,
    circuits=1024,
    circuits_from_peer=256,
    circuits_to_peer=32,
    circuits_from_network=512,
    circuit_bytes=1 << 30,
    circuit_s=7200.0,
    bytes_per_s=20 << 20,
)
BUSY = GateSnapshot(
    version="1.2.3",
    incarnation=41,
    uptime_s=273_845.0,
    admit="ticket",
    addresses=("/ip4/192.0.2.7/tcp/4101", "/ip6/2001:db8::7/tcp/4101"),
    connected=214,
    peers=tuple(
        ConnectedPeer(peer=Identity.from_seed(n).peer_id, address=f"/ip4/192.0.2.{n}/tcp/51034", place=n < 3)
        for n in range(40)
    ),
    caps=CAPS,
    reservations=198,
    reservations_made=30_212,
    circuits=61,
    busiest=tuple(LiveCircuit(source=A, target=B, seconds=90.0 * n, bytes=n << 26) for n in range(40, 0, -1)),
    circuits_begun=1_204_332,
    circuits_ended={"closed": 1_204_000, "bytes": 300, "time": 32},
    relayed_bytes=7 << 40,
    refused={f"relay reason-{n}": 10_000 - n for n in range(12)},
    adverts=212,
    shards=4_120,
    advert_bytes=190_800,
    memory_bytes=140 << 20,
    cpu_s=81_003.4,
    lag_s=0.012,
)
QUIET = GateSnapshot(version="1.2.3", incarnation=1, uptime_s=3.0, admit="open")


def shown(
    snapshot: GateSnapshot, before: GateSnapshot | None = None, *, width: int = 80, height: int | None = None
) -> str:
    page = io.StringIO()
    view = status_view(GATE, snapshot, before, height=height)
    Console(file=page, width=width, color_system=None).print(view)
    return page.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("snapshot", [BUSY, QUIET], ids=["busy", "quiet"])
def test_it_fits_the_terminal(snapshot: GateSnapshot, width: int) -> None:
    assert max(map(len, shown(snapshot, width=width).splitlines())) <= width


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (60, 20), (200, 60)])
def test_the_live_view_fits_and_says_what_it_leaves_out(width: int, height: int) -> None:
    page = io.StringIO()
    screen = status_view(GATE, BUSY, height=height, hint=Text("q leaves"))
    Console(file=page, width=width, color_system=None).print(screen)
    lines = page.getvalue().splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert "q leaves" in lines[-1]
    assert "214 connected" in page.getvalue()
    if height >= 40:
        assert f"…{A[-8:]}" in page.getvalue()
    result = sum(" more" in line and line.startswith("…") for line in lines)
    assert result == sum(line.startswith(("circuit from", "peer  ")) for line in lines)


def test_circuits_and_peers_share_the_room_and_leave_none_of_it_while_there_are_more() -> None:
    assert shares(30, 49, 49) == (13, 13)
    assert shares(30, 3, 49) == (3, 23)
    assert shares(30, 49, 3) == (23, 3)
    assert shares(30, 2, 3) == (2, 3)
    assert shares(30, 0, 49) == (0, 28)
    assert shares(4, 49, 49) == (2, 0)
    assert shares(0, 49, 49) == (0, 0)


def test_a_busy_gate_says_how_many_it_does_not_list() -> None:
    page = shown(BUSY)
    for result in (
        GATE,
        "3 d 4 h",
        "198 of 1024 held, 256 for a network",
        "61 of 1024, each 1 GiB, 2 h at most",
        "7 TiB",
        "closed 1204000",
        "relay reason-0 10000",
        "212 devices, 4120 shards",
        "… 21 more",
        "… 174 more",
        f"…{A[-8:]}",
        "12 ms late",
    ):
        assert result in page, result


def test_one_is_one() -> None:
    assert "1 device, 1 shard," in shown(QUIET.model_copy(update={"adverts": 1, "shards": 1}))


def test_between_two_looks_it_tells_the_speed_and_the_load() -> None:
    later = BUSY.model_copy(
        update={
            "uptime_s": BUSY.uptime_s + 2,
            "relayed_bytes": BUSY.relayed_bytes + (6 << 20),
            "cpu_s": BUSY.cpu_s + 0.5,
        }
    )
    page = shown(later, BUSY)
    assert "3 MiB/s now, 20 MiB/s at most" in page
    assert "25 % of a core now" in page


def test_a_gate_that_was_started_anew_has_no_speed_yet() -> None:
    assert "of a core" not in shown(QUIET, BUSY)


def test_a_gate_that_drains_says_so() -> None:
    assert "draining" in shown(BUSY.model_copy(update={"draining": True}))


def test_a_gate_that_relays_nothing_says_that_it_is_off() -> None:
    page = shown(QUIET)
    assert "relay" in page
    assert "off" in page
    assert "places" not in page


def test_words_of_a_hostile_gate_do_not_reach_the_terminal_as_they_are() -> None:
    rude = QUIET.model_copy(
        update={"version": "\x1b[2Jx", "admit": "\u202etekcit", "refused": {"\x1b]0;x\x07": 1}}
    )
    page = shown(rude)
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_programs_get_all_of_it() -> None:
    document = json.loads(status_json(GATE, BUSY))
    assert document["gate"] == GATE
    assert document["caps"]["circuits"] == 1024
    assert len(document["peers"]) == 40
    assert (
        GateSnapshot.model_validate({k: v for k, v in document.items() if k != "gate"}, strict=False) == BUSY
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (59.0, "59 s"),
        (61.0, "1 min 1 s"),
        (7200.0, "2 h"),
        (90_061.0, "1 d 1 h"),
        (3600.4, "1 h"),
    ],
)
def test_times_are_shown_in_their_two_largest_units(seconds: float, text: str) -> None:
    assert show_for(seconds) == text
