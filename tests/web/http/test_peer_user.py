"""Which user's process is at the other end of a loopback connection."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping

import pytest
from starlette.datastructures import Headers

from web.http.middleware import AccessRules, refusal
from web.http.peer_user import is_own, owner

CLIENT, SERVER = ("127.0.0.1", 40000), ("127.0.0.1", 5000)
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
LINE = "   0: {own} {other} {state} 00000000:00000000 00:00000000 00000000  {user}        0 {inode} 1 0 20 4 30 10 -1\n"
V4 = {"own": "0100007F:9C40", "other": "0100007F:1388"}
MAPPED = {
    "own": "0000000000000000FFFF00000100007F:9C40",
    "other": "0000000000000000FFFF00000100007F:1388",
}
V6 = {"own": "00000000000000000000000001000000:9C40", "other": "00000000000000000000000001000000:1388"}
LIVE = {"state": "01", "user": "1000", "inode": "77"}
little_endian = pytest.mark.skipif(
    sys.byteorder != "little", reason="the tables above are of a little-endian machine"
)


def tables(**lines: Mapping[str, str]) -> dict[str, str]:
    return {name: HEAD + (LINE.format(**lines[name]) if name in lines else "") for name in ("tcp", "tcp6")}


@little_endian
def test_the_client_is_found_by_both_ends_of_its_connection() -> None:
    assert owner(CLIENT, SERVER, tables(tcp=V4 | LIVE).__getitem__) == 1000
    assert owner(CLIENT, SERVER, tables(tcp6=MAPPED | LIVE).__getitem__) == 1000
    assert owner(("::1", 40000), ("::1", 5000), tables(tcp6=V6 | LIVE).__getitem__) == 1000
    assert owner(("127.0.0.1", 40001), SERVER, tables(tcp=V4 | LIVE).__getitem__) is None
    assert owner(CLIENT, ("127.0.0.1", 5001), tables(tcp=V4 | LIVE).__getitem__) is None


@little_endian
@pytest.mark.parametrize(
    "change", [{"inode": "0", "user": "0"}, {"state": "06", "user": "0"}, {"state": "04", "user": "0"}]
)
def test_a_socket_that_was_closed_is_nobodys_although_the_kernel_says_root(change: dict[str, str]) -> None:
    assert owner(CLIENT, SERVER, tables(tcp=V4 | LIVE | change).__getitem__) is None


def test_what_cannot_be_read_proves_nothing() -> None:
    def missing(name: str) -> str:
        raise FileNotFoundError(name)

    assert owner(CLIENT, SERVER, missing) is None
    assert owner(("not an address", 1), SERVER, tables().__getitem__) is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_this_systems_own_table_names_us_and_stops_when_the_client_is_gone() -> None:
    with socket.socket() as listening, socket.socket() as client:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        client.connect(listening.getsockname())
        accepted, address = listening.accept()
        with accepted:
            assert is_own(address, listening.getsockname())
            client.close()
            assert not is_own(address, listening.getsockname())


def test_ones_own_process_needs_no_token_and_a_wrong_token_is_refused_to_anybody() -> None:
    rules = AccessRules(token="a-token-of-this-test-0123456789")
    host = {"host": "localhost"}

    def status(own: bool, **headers: str) -> int | None:
        refused = refusal(rules, "/api/v1/campaigns", Headers(host | headers), is_own=lambda: own)
        return refused and refused[0]

    assert status(own=True) is None
    assert status(own=False) == 401
    assert status(own=True, authorization="Bearer wrong-token-0123456789") == 401
