"""Typing errors of a device's owner and of a gate's operator, and the answers they get."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Typed


def test_an_invalid_scheduler_id_is_refused_with_where_to_find_one(typed: Typed) -> None:
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


def test_a_gate_on_a_taken_port_is_advised_to_take_another(typed: Typed, listener: str) -> None:
    done = typed("gate", "--port", listener.split("/")[4])
    assert done.code == 6
    assert "is taken\n  choose another with --listen /ip4/0.0.0.0/tcp/PORT (a gate: --port)" in done.err


@pytest.mark.parametrize(
    "words", [("status",), ("pause", "--now"), ("resume",), ("drain", "--finish"), ("reset",)]
)
def test_a_command_to_a_worker_that_does_not_run_says_so(typed: Typed, words: tuple[str, ...]) -> None:
    done = typed(*words)
    assert done.code == 4
    assert (
        done.err == "sark-node: this device: no worker of this home is running\n  start it: sark-node join\n"
    )


def test_a_killed_worker_is_distinguished_from_one_that_never_ran(typed: Typed) -> None:
    file = typed.home / "data" / "worker" / "addresses"
    file.parent.mkdir(parents=True)
    file.write_text("/ip4/127.0.0.1/tcp/9\n")
    done = typed("status", "--json")
    assert done.code == 4
    (device,) = json.loads(done.out)["devices"]
    assert device["error"] == "the worker of this home does not answer"


def test_another_device_cannot_be_named_without_a_gate(typed: Typed) -> None:
    done = typed("pause", "lab-1")
    assert done.code == 4
    assert "no gate is known here" in done.err


@pytest.mark.parametrize(
    ("hours", "hint"), [("22-7", "22:00-07:00"), ("Samstag", "22:00-07:00"), ("Sam", "the days are Mon, Tue")]
)
def test_invalid_quiet_hours_are_refused_with_the_right_form(typed: Typed, hours: str, hint: str) -> None:
    done = typed("join", "--quiet", hours)
    assert done.code == 2
    assert "--quiet: quiet cannot be" in done.err
    assert hint in done.err


def test_a_setting_of_the_file_counts_like_its_flag(typed: Typed) -> None:
    file = typed.home / "config" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('[worker]\nquiet = ["22:00-07:00", "nine to five"]\n')
    done = typed("join")
    assert done.code == 2
    assert f"{file}: quiet cannot be 'nine to five'" in done.err


def test_a_damaged_ticket_is_bad_input_with_a_hint_how_to_copy_it(typed: Typed) -> None:
    done = typed("join", "sark1abcdefgh")
    assert done.code == 2
    assert "damaged" in done.err
    assert "copy all of it" in done.err


def test_a_pool_that_is_not_served_cannot_be_left(typed: Typed) -> None:
    done = typed("join", "--leave-pool", "lab")
    assert done.code == 2
    assert "--leave-pool 'lab' is not a pool that this device works for\n  it is one of: none" in done.err
