"""Output for programs can be parsed, piped output has no escape codes, and no name can harm a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

from tests.real.lab import Lab, campaign, script


def test_commands_with_json_print_one_document_and_nothing_else(lab: Lab, tmp_path: Path) -> None:
    name = "[bold red]m[_red].json"
    submitted = lab.submit("ada", campaign(tmp_path, "printed", [script(tmp_path, name)]))
    assert submitted.code == 0, submitted
    parsed = submitted.json()
    result = parsed["campaign"]
    assert Path(parsed["csv"]).is_file()
    assert Path(parsed["raw"]).is_file()
    assert lab.run("ada", "watch", result, "--json").json()["results"] == parsed["results"]
    assert lab.run("ada", "results", result, "--json").json()["results"] == parsed["results"]
    listed = lab.run("ada", "campaigns", "--json").json()
    assert listed["count"] == len(listed["campaigns"])
    assert listed["campaigns"][0]["campaign_id"] == result
    document = lab.run("ada", "peers", "ram >= 1 GiB", "cores >= 4000", "--gate", lab.gate, "--json").json()
    assert {peer["name"]: peer["fits"] for peer in document["peers"]} == {"one": False, "two": False}
    assert all([unmet.split(":")[0] for unmet in peer["unmet"]] == ["cores"] for peer in document["peers"])
    piped = lab.run("ada", "results", result, environment={"TERM": "xterm-256color"})
    assert piped.code == 0, piped
    assert name in piped.out
    assert "\x1b" not in piped.out + piped.err


def on_a_terminal(command: list[str], environment: dict[str, str], cwd: Path) -> str:
    """The output of a command on a terminal with 100 columns."""
    own, theirs = pty.openpty()
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env={**environment, "COLUMNS": "100"}
    ):
        os.close(theirs)
        received = b""
        try:
            while piece := os.read(own, 65536):
                received += piece
        except OSError:  # the terminal's other end is closed
            pass
        finally:
            os.close(own)
    return received.decode()


def test_colours_are_for_terminals_and_can_be_switched_off(lab: Lab, tmp_path: Path) -> None:
    file = campaign(tmp_path, "coloured", [script(tmp_path, "m.json")])
    command = lab.command("ada", "validate", file)
    environment = {**lab.environment("ada"), "TERM": "xterm-256color"}
    assert "\x1b[" in on_a_terminal(command, environment, tmp_path)
    without = on_a_terminal(command, {**environment, "NO_COLOR": "1"}, tmp_path)
    assert "m.json" in without
    assert "\x1b[3" not in without


def test_a_hostile_name_is_refused_or_shown_harmlessly(lab: Lab, tmp_path: Path) -> None:
    title = campaign(tmp_path, "x\x1b]0;pwned\x07", [script(tmp_path, "m.json")])
    done = lab.run("ada", "validate", title)
    assert done.code == 2, done
    assert "\x1b" not in done.out + done.err
    hidden = campaign(tmp_path, "hidden", [script(tmp_path, "m\x1b[2Jx\u202e.json")])
    done = lab.run("ada", "validate", hidden)
    assert "\x1b" not in done.out + done.err
    assert "\u202e" not in done.out + done.err
    assert done.code in (0, 2), done
