"""Settings: file, then environment, then flags; a wrong one is reported with its place."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from protocol.errors import ResourceError, SettingsError
from protocol.wire.base import Name
from swarm.net.identity import Identity
from swarm.net.settings import RoleSettings

GATE = f"/ip4/192.0.2.1/tcp/1/p2p/{Identity.from_seed(1).peer_id}"


class Example(RoleSettings):
    section: ClassVar[str] = "worker"
    name: str = "default"
    slots: int = 1
    labels: dict[str, Name] = {}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def test_no_file_at_all_gives_the_defaults(file: Path) -> None:
    assert Example.load(file, {}, {"name": None}) == Example()


def test_later_sources_win(file: Path) -> None:
    file.write_text(f'gates = ["{GATE}"]\n[worker]\nname = "file"\nslots = 2\n[gate]\nx = 1\n')
    got = Example.load(file, {"SARK_SLOTS": "3", "SARK_LABELS": "site=lab, rack=2"}, {"name": "flag"})
    assert (got.name, got.slots, got.gates) == ("flag", 3, (GATE,))
    assert got.labels == {"site": "lab", "rack": "2"}


@pytest.mark.parametrize(
    ("text", "environment", "flags", "what"),
    [
        ("nmae = 1", {}, {}, "unknown setting 'nmae'"),
        ("[worker]\nsluts = 1", {}, {}, r"unknown setting 'sluts' in \[worker\]"),
        ("worker = 3", {}, {}, "worker must be a section"),
        ("= =", {}, {}, "config.toml: "),
        ("[worker]\nslots = 'many'", {}, {}, "config.toml: slots cannot be 'many'"),
        ("", {"SARK_SLOTS": "many"}, {}, "SARK_SLOTS: slots cannot be 'many'"),
        ("", {}, {"slots": "many"}, "--slots: slots cannot be 'many'"),
        ("", {}, {"gates": ("192.0.2.1:4101",)}, "--gate: gates cannot be '192.0.2.1:4101'"),
        ("", {}, {"gates": ("/ip4/192.0.2.1/tcp/1/p2p/12D3KooWfoo",)}, "--gate: gates cannot be '/ip4"),
        ("", {}, {"gates": (GATE.replace("tcp/1", "tcp/x"),)}, "--gate: gates cannot be '/ip4"),
        ("", {}, {"listen": ("4001",)}, "--listen: listen cannot be '4001'"),
        ("", {}, {"announce": ("192.0.2.7:4101",)}, "--announce: announce cannot be '192.0.2.7:4101'"),
        ("", {}, {"announce": ("/ip4/0.0.0.0/tcp/4101",)}, "--announce: announce cannot be '/ip4/0.0.0.0"),
        (
            "",
            {},
            {"announce": ("/ip4/192.0.2.7/tcp/0",)},
            "--announce: announce cannot be '/ip4/192.0.2.7/tcp/0",
        ),
    ],
)
def test_a_wrong_setting_is_reported_with_its_place(
    file: Path, text: str, environment: dict[str, str], flags: dict[str, object], what: str
) -> None:
    file.write_text(text)
    with pytest.raises(SettingsError, match=what) as caught:
        Example.load(file, environment, flags)
    assert caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("gates = 'x'", "write a list"),
        ("[worker]\nslots = 'many'", "write a whole number"),
        ("[worker]\nlabels = 'site'", "write names with values"),
        ("lan = 'perhaps'", "write true or false"),
        ("[worker]\nname = 3", "write it in quotes"),
        ("[worker]\nlabels = {site = '?'}", "letters, digits"),
    ],
)
def test_the_hint_uses_words_of_the_file_and_not_of_python(file: Path, text: str, hint: str) -> None:
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        Example.load(file, {}, {})
    assert hint in caught.value.hint


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="cannot read"):
        Example.load(tmp_path, {}, {})


def test_the_lan_is_looked_at_unless_file_environment_or_flag_say_no_and_upnp_is_asked_for(
    file: Path,
) -> None:
    file.write_text("")
    plain = Example.load(file, {}, {})
    assert (plain.lan, plain.upnp) == (True, False)
    assert not Example.load(file, {"SARK_LAN": "false"}, {}).lan
    assert not Example.load(file, {}, {"lan": False}).lan
    assert Example.load(file, {"SARK_UPNP": "true"}, {}).upnp
    file.write_text("lan = false\n[worker]\nupnp = true\n")
    written = Example.load(file, {}, {})
    assert (written.lan, written.upnp) == (False, True)
