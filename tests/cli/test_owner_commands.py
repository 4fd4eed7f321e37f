"""What a device's owner and a gate's operator type wrong, and what they are told."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Typed


def test_a_scheduler_id_that_is_none_is_told_with_where_to_find_one(typed: Typed) -> None:
    done = typed("join", "--allow", "foo")
    assert done.code == 2
    assert "--allow: allow cannot be 'foo'" in done.err
    assert "12D3Koo" in done.err
    assert "sark-node info" in done.err


@pytest.mark.parametrize("words", [("join",), ("peers",), ("gate",)])
def test_a_gate_with_half_an_id_is_bad_input(typed: Typed, words: tuple[str, ...]) -> None:
    done = typed(*words, "--gate", "/ip4/127.0.0.1/tcp/4101/p2p/12D3KooWfoo")
    assert done.code == 2
    assert "/ip4/192.0.2.7/tcp/4101/p2p/12D3Koo" in done.err


def test_a_gate_on_a_taken_port_is_told_to_take_another(typed: Typed, listener: str) -> None:
    done = typed("gate", "--port", listener.split("/")[4])
    assert done.code == 6
    assert "is taken\n  choose another with --port" in done.err
