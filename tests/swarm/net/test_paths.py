"""The path to a peer, in words and for programs."""

from __future__ import annotations

from swarm.net.identity import Identity
from swarm.net.network import Path, path_json, path_words

GATE = Identity.from_seed("gate").peer_id
CIRCUIT = f"/ip4/192.0.2.7/tcp/4101/p2p/{GATE}/p2p-circuit"


def test_a_direct_path_is_shown_with_its_time() -> None:
    assert path_words(Path(True, None, 0.84)) == "direct, 0.8 ms"
    assert path_words(Path(True, None, None)) == "direct"
    assert path_words(None) == ""


def test_a_way_through_a_gate_names_the_gate_by_its_address_where_that_is_known() -> None:
    assert (
        path_words(Path(False, GATE, 41.4), ["/ip4/10.0.0.1/tcp/1", CIRCUIT])
        == "via gate 192.0.2.7:4101, 41 ms"
    )
    assert path_words(Path(False, GATE, 41.4)) == f"via gate …{GATE[-8:]}, 41 ms"
    assert path_words(Path(False, None, None)) == "via gate ?"
    six = f"/ip6/2001:db8::7/tcp/4101/p2p/{GATE}/p2p-circuit"
    assert path_words(Path(False, GATE, None), [six]) == "via gate [2001:db8::7]:4101"


def test_programs_get_the_peer_id_and_a_number() -> None:
    assert path_json(Path(False, GATE, 41.43219)) == {"direct": False, "gate": GATE, "rtt_ms": 41.432}
    assert path_json(Path(True, None, None)) == {"direct": True, "gate": None, "rtt_ms": None}
    assert path_json(None) is None
