"""The settings for operators, and how a wrong value is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from gate.settings import Admit, GateSettings
from protocol.errors import SettingsError
from swarm.net.identity import Identity
from swarm.net.reservations import RelayLimits

PEER = Identity.from_seed("peer").peer_id


def load(
    text: str = "",
    environment: dict[str, str] | None = None,
    flags: dict[str, object] | None = None,
    *,
    at: Path,
) -> GateSettings:
    file = at / "config.toml"
    file.write_text(text)
    return GateSettings.load(file, environment or {}, flags or {})


def test_a_gate_runs_with_no_settings_at_all(tmp_path: Path) -> None:
    got = load(at=tmp_path)
    assert got.admit is Admit.OPEN
    assert got.metrics == ""
    assert got.drain_s == 30
    assert got.relay_limits == RelayLimits()


def test_file_environment_and_flags_set_the_same_things(tmp_path: Path) -> None:
    text = f'[gate]\nadmit = "list"\nallow = ["{PEER}"]\nrelay_circuit_bytes = "2 GiB"\nrelay_bytes_per_s = "20 MB"\n'
    got = load(
        text,
        {"SARK_ADMIT": "ticket", "SARK_OPERATORS": PEER, "SARK_RELAY_CIRCUITS": "9"},
        {"drain_s": 0},
        at=tmp_path,
    )
    assert (got.admit, got.allow, got.operators, got.drain_s) == (Admit.TICKET, (PEER,), (PEER,), 0)
    limits = got.relay_limits
    assert limits is not None
    assert (limits.circuit_bytes, limits.bytes_per_s, limits.circuits) == (2 << 30, 20_000_000, 9)


def test_a_gate_that_relays_nothing_has_no_limits(tmp_path: Path) -> None:
    assert load("", {}, {"relay": False}, at=tmp_path).relay_limits is None


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('admit = "everybody"', "admit cannot be 'everybody'"),
        ('allow = ["12D3KooWfoo"]', "allow cannot be"),
        ('operators = ["me"]', "operators cannot be"),
        ('pools = ["lab"]', "pools cannot be"),
        ('metrics = "127.0.0.1"', "metrics cannot be"),
        ("drain_s = -1", "drain_s cannot be"),
        ('relay_circuit_bytes = "much"', "relay_circuit_bytes cannot be 'much'"),
        ("relay_circuit_bytes = 0", "relay_circuit_bytes cannot be"),
        ("relay_reservations = 0", "relay_reservations cannot be"),
        ("relay_circuit_s = 0", "relay_circuit_s cannot be"),
        ("relay_places = 3", "unknown setting 'relay_places'"),
    ],
)
def test_a_wrong_setting_is_reported_with_its_place(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(f"[gate]\n{text}\n", at=tmp_path)
    assert what in caught.value.what
    assert str(tmp_path / "config.toml") in caught.value.what


def test_flags_are_named_as_they_are_typed(tmp_path: Path) -> None:
    for name, flag in (("operators", "--operator"), ("pools", "--pool"), ("admit", "--admit")):
        with pytest.raises(SettingsError, match=f"^{flag}: "):
            load("", {}, {name: ("x",)}, at=tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("pools", "lab", "sark-node pool members NAME"),
        ("allow", "lab", "sark-node info"),
        ("announce", "/ip4/0.0.0.0/tcp/4101", "others cannot dial it: write an IP address that they reach"),
        ("announce", "192.0.2.7:4101", "an address looks like /ip4/192.0.2.7/tcp/4101"),
    ],
)
def test_a_wrong_value_comes_with_the_right_form(tmp_path: Path, name: str, value: str, hint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load("", {}, {name: (value,)}, at=tmp_path)
    assert hint in caught.value.hint
