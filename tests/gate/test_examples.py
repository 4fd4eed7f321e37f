"""The examples that operators copy are correct: the unit, the container files, the config with every setting, the rules and metrics in the
guide.
"""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml

import sark
from gate.settings import GateSettings
from gate.status.metrics import page_of
from protocol.messages.gate import GateSnapshot, RelayCaps
from swarm.net.reservations import RelayLimits
from swarm.net.settings import RoleSettings

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "gate"
GUIDE = (ROOT / "docs" / "gates.md").read_text(encoding="utf-8")


def unit() -> configparser.ConfigParser:
    read = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=("#",))
    read.optionxform = str  # type: ignore[assignment, method-assign]
    read.read_string((EXAMPLES / "sark-gate.service").read_text(encoding="utf-8"))
    return read


def understands(words: list[str]) -> click.Context:
    """Check that the program accepts this command line, without running it. Raises what click raises for a wrong one."""
    command: Any = typer.main.get_command(sark.app)
    context = command.make_context("sark-node", words)
    while isinstance(command, click.Group) or hasattr(command, "resolve_command"):
        rest = [*getattr(context, "_protected_args", ()), *context.args]
        if not rest:
            break
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    return context


def test_the_command_of_the_unit_is_one_that_the_program_takes() -> None:
    program, *words = shlex.split(unit()["Service"]["ExecStart"])
    assert program.endswith("/sark-node")
    context = understands(words)
    assert context.command.name == "gate"
    assert context.params["metrics"] == "127.0.0.1:9464"


def test_the_unit_waits_longer_than_the_gate_drains() -> None:
    assert float(unit()["Service"]["TimeoutStopSec"]) > GateSettings().drain_s
    compose = yaml.safe_load((EXAMPLES / "compose.yaml").read_text(encoding="utf-8"))
    assert int(compose["services"]["gate"]["stop_grace_period"].removesuffix("s")) > GateSettings().drain_s


def test_the_home_of_the_unit_is_where_it_may_write() -> None:
    service = unit()["Service"]
    words = shlex.split(service["ExecStart"])
    assert words[words.index("--home") + 1] == f"/var/lib/{service['StateDirectory']}"
    assert service["ProtectSystem"] == "strict"


def test_systemd_finds_nothing_wrong_with_the_unit_where_systemd_is(tmp_path: Path) -> None:
    text = (EXAMPLES / "sark-gate.service").read_text(encoding="utf-8")
    here = tmp_path / "sark-gate.service"
    here.write_text(text.replace("/opt/sark/bin/sark-node", sys.executable))
    systemd = shutil.which("systemd-analyze")
    if systemd is not None:
        done = subprocess.run(
            [systemd, "verify", str(here)], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_the_example_config_is_what_a_gate_has_without_any(tmp_path: Path) -> None:
    got = GateSettings.load(EXAMPLES / "config.toml", {}, {})
    assert got == GateSettings(lan=False)


def test_every_setting_of_a_gate_stands_in_the_example_config() -> None:
    text = (EXAMPLES / "config.toml").read_text(encoding="utf-8")
    for name in set(GateSettings.model_fields) - (
        set(RoleSettings.model_fields) - {"gates", "lan", "upnp", "listen", "announce"}
    ):
        assert re.search(rf"(?m)^(# )?{name} = ", text), name


def test_what_is_commented_out_in_the_example_config_would_be_taken(tmp_path: Path) -> None:
    from swarm.net.identity import Identity

    text = (EXAMPLES / "config.toml").read_text(encoding="utf-8")
    whole = re.sub(r"(?m)^# (?=\w+ = )", "", text).replace("12D3KooW...", Identity.from_seed(1).peer_id)
    assert tomllib.loads(whole) != tomllib.loads(text)
    file = tmp_path / "config.toml"
    file.write_text(whole)
    assert GateSettings.load(file, {}, {}).metrics == "127.0.0.1:9464"


def test_the_containers_commands_are_ones_that_the_program_takes() -> None:
    lines = (EXAMPLES / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    values = {
        line.split()[0]: yaml.safe_load(line.partition(" ")[2])
        for line in lines
        if line.startswith(("CMD", "ENTRY"))
    }
    entry = values["ENTRYPOINT"][1:]
    assert understands([*entry, *values["CMD"]]).command.name == "gate"
    compose = yaml.safe_load((EXAMPLES / "compose.yaml").read_text(encoding="utf-8"))
    service = compose["services"]["gate"]
    assert understands([*entry, *service["command"]]).params["metrics"] == "0.0.0.0:9464"
    assert {name.removeprefix("SARK_").lower() for name in service["environment"]} <= set(
        GateSettings.model_fields
    )
    assert service["volumes"] == [f"gate:{entry[entry.index('--home') + 1]}"]
    scraped = yaml.safe_load((EXAMPLES / "prometheus.yaml").read_text(encoding="utf-8"))["scrape_configs"][0]
    assert scraped["static_configs"] == [{"targets": ["gate:9464"]}]


def metrics() -> set[str]:
    """The names of all our metrics."""
    limits = RelayLimits()
    caps = RelayCaps(**{name: getattr(limits, name) for name in RelayCaps.model_fields})
    snapshot = GateSnapshot(
        version="1",
        incarnation=1,
        uptime_s=1.0,
        admit="open",
        caps=caps,
        refused={"relay full": 1},
        circuits_ended={"closed": 1},
    )
    page = page_of(lambda: snapshot, "gate")().decode()
    return set(re.findall(r"(?m)^(sark_gate_\w+)", page))


def test_the_guide_tells_every_metric_and_no_other() -> None:
    values: set[str] = set()
    for cell in re.findall(r"(?m)^\| (`sark_gate_.*?) \|", GUIDE):
        names = [name.partition("{")[0] for name in re.findall(r"`([^`]*)`", cell)]
        values |= {names[0], *(_sibling(names[0], name) for name in names[1:])}
    assert values == metrics()


def _sibling(first: str, ending: str) -> str:
    """`sark_gate_relay_reservations`, `_places_limit` → `sark_gate_relay_reservations_limit`."""
    head = ending.split("_")[1]
    stored = first[: first.index(f"_{head}")] if f"_{head}" in first else first.rpartition("_")[0]
    return stored + ending


def test_the_rules_in_the_guide_are_yaml_and_name_metrics_that_there_are() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    rules = yaml.safe_load(text)["groups"][0]["rules"]
    assert len(rules) >= 4
    for rule in rules:
        assert set(re.findall(r"sark_gate_\w+", rule["expr"])) <= metrics()


@pytest.mark.parametrize("name", sorted(GateSettings.model_fields))
def test_the_limits_in_the_guide_are_the_settings(name: str) -> None:
    if name.startswith("relay"):
        assert name in GUIDE or f"…{name.removeprefix('relay_circuits')}" in GUIDE
