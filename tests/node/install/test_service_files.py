"""The files that make systems start the worker after a reboot, each read back by a reader of its kind, and the commands around them."""

from __future__ import annotations

import configparser
import os
import plistlib
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer.main

import node.cli.main
import web.cli
from node.cli.main import SERVE_PORT, with_places
from node.cli.service import options_given
from node.install.install import (
    install,
    not_carried,
    run_command,
    service_command,
    setting_here,
    uninstall,
    works_here,
)
from node.install.restart_loop import AGAIN_S
from node.install.restart_loop import again as again_of
from node.install.restart_loop import main as main_of
from node.install.service_files import (
    STILL_THERE,
    ServiceManager,
    ServiceRole,
    Setting,
    name_for,
    service_for,
)
from protocol.errors import ResourceError, SettingsError
from swarm.base.home import Home
from swarm.base.locks import lock_folder

COMMAND = (sys.executable, "-P", "-m", "sark", "join", "--name", 'lab "3" at 50 % of $HOME', "--quiet", "Sat")
TASK = "{http://schemas.microsoft.com/windows/2004/02/mit/task}"


def setting(folder: Path, system: ServiceManager = ServiceManager.SYSTEMD, *, root: bool = False) -> Setting:
    return Setting(
        system=system,
        root=root,
        user="ann",
        uid=501,
        folder=folder,
        config=folder / ".config",
        data=folder / "data & more",
        logs=folder / "logs",
        home=None,
        environment=(("HOME", str(folder)), ("XDG_DATA_HOME", '/data "x" 50 % of $y')),
    )


class Commands:
    """Double for the system: records each command and returns its scripted exit code."""

    def __init__(self, **codes: int) -> None:
        self.codes = codes
        self.asked: list[str] = []

    def __call__(self, command: Sequence[str]) -> tuple[int, str]:
        line = " ".join(command)
        self.asked.append(line)
        code = next((code for word, code in self.codes.items() if word in line), 0)
        return code, "it says no\nand more" if code else ""


# -- service files -------------------------------------------------------------------------------------------------------


def systemd_words(line: str) -> list[str]:
    """Split a command line as systemd.syntax(7) describes."""
    words, word, quoted, at = [], "", False, 0
    while at < len(line):
        char = line[at]
        if char == "\\":
            at += 1
            word += line[at]
        elif char == '"':
            quoted = not quoted
        elif char == " " and not quoted:
            words.append(word)
            word = ""
        elif line[at : at + 2] in ("%%", "$$"):
            word += char
            at += 1
        else:
            assert char not in "%$", "systemd would put something else here"
            word += char
        at += 1
    return [*words, word]


@pytest.mark.parametrize("root", [False, True])
def test_the_unit_of_systemd_runs_the_very_command_and_begins_again_after_a_failure(
    tmp_path: Path, root: bool
) -> None:
    made = service_for(setting(tmp_path, root=root), COMMAND)
    unit = configparser.ConfigParser(interpolation=None, strict=False)  # one variable per line
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(made.text)
    assert systemd_words(unit["Service"]["ExecStart"]) == list(COMMAND)
    assert unit["Service"]["Restart"] == "on-failure"
    assert unit["Service"]["RestartPreventExitStatus"] == "2 5"
    assert unit["Install"]["WantedBy"] == ("multi-user.target" if root else "default.target")
    assert unit["Service"].get("User") == ("ann" if root else None)
    variables = re.findall(r'^Environment="(.*)"$', made.text, re.MULTILINE)
    lines = [line.replace('\\"', '"').replace("%%", "%") for line in variables]
    assert lines == ["PYTHONUNBUFFERED=1", f"HOME={tmp_path}", 'XDG_DATA_HOME=/data "x" 50 % of $y']
    expected = Path("/etc/systemd/system") if root else tmp_path / ".config/systemd/user"
    assert made.path == expected / "sark-node.service"
    assert ("--user" in made.log) is not root
    assert any("enable-linger" in step.command for step in made.enable) is not root


def test_systemd_itself_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        assert service_for(setting(tmp_path), COMMAND).text, "there is no systemd to ask"
        return
    made = service_for(setting(tmp_path), COMMAND)
    unit = tmp_path / made.name
    unit.write_text(made.text)
    done = subprocess.run(
        [tool, "verify", "--man=no", "--user", str(unit)], capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stderr.splitlines() if made.name in line]
    assert lines == []


@pytest.mark.parametrize("root", [False, True])
def test_the_property_list_of_launchd_runs_the_very_command(tmp_path: Path, root: bool) -> None:
    made = service_for(setting(tmp_path, ServiceManager.LAUNCHD, root=root), COMMAND)
    result = plistlib.loads(made.text.encode())
    assert result["ProgramArguments"] == list(COMMAND)
    assert result["EnvironmentVariables"]["XDG_DATA_HOME"] == '/data "x" 50 % of $y'
    assert result["Label"] == made.name == "org.sark.node"
    assert result["KeepAlive"] == {"SuccessfulExit": False}
    assert result["StandardErrorPath"] == str(tmp_path / "logs" / "worker.log")
    folder = Path("/Library/LaunchDaemons") if root else tmp_path / "Library/LaunchAgents"
    assert made.path == folder / "org.sark.node.plist"
    assert made.enable[-1].command[:3] == ("launchctl", "bootstrap", "system" if root else "gui/501")
    assert bool(made.notes) is not root


@pytest.mark.parametrize("root", [False, True])
def test_the_task_of_windows_runs_the_command_at_the_usual_priority(tmp_path: Path, root: bool) -> None:
    command = ("C:\\Program Files\\python.exe", "-m", "sark", "--label", "site=lab & <more>", "C:\\dir\\")
    made = service_for(
        replace(setting(tmp_path, ServiceManager.WINDOWS, root=root), user="LAB\\ann"), command
    )
    task = ElementTree.fromstring(made.text.partition("\n")[2])  # noqa: S314  (our own text)

    def text(*way: str) -> str:
        return task.findtext("/".join(TASK + part for part in way)) or ""

    assert text("Actions", "Exec", "Command") == "cmd.exe"
    again = '"C:\\Program Files\\python.exe" "-P" "-m" "node.install.restart_loop"'
    words = f'{again} "C:\\Program Files\\python.exe" "-m" "sark" "--label" "site=lab & <more>" "C:\\dir\\\\"'
    log = str(tmp_path / "logs" / "worker.log")
    assert text("Actions", "Exec", "Arguments") == f'/d /s /c "{words} >> "{log}" 2>&1"'
    assert text("Settings", "Priority") == "5"
    assert 1 <= int(text("Settings", "RestartOnFailure", "Count")) <= 255, "what its schema takes"
    assert text("Settings", "ExecutionTimeLimit") == "PT0S"
    assert text("Principals", "Principal", "LogonType") == ("S4U" if root else "InteractiveToken")
    assert task.find(f"{TASK}Triggers/{TASK}{'BootTrigger' if root else 'LogonTrigger'}") is not None
    made.text.encode(made.encoding)


@pytest.mark.parametrize("word", ["100 %", 'say "x"'])
def test_what_the_task_scheduler_would_read_otherwise_is_refused(tmp_path: Path, word: str) -> None:
    with pytest.raises(ResourceError, match=r"config\.toml|cannot pass"):
        service_for(setting(tmp_path, ServiceManager.WINDOWS), ("python", word))


@pytest.mark.parametrize("system", list(ServiceManager))
@pytest.mark.parametrize("word", ["a\nExecStartPre=/bin/sh", "a\x00b", "\x1b[31m"])
def test_a_line_break_in_an_argument_adds_no_line_to_the_file(
    tmp_path: Path, system: ServiceManager, word: str
) -> None:
    with pytest.raises(ResourceError, match="a line break"):
        service_for(setting(tmp_path, system), ("python", word))


@pytest.mark.parametrize("system", list(ServiceManager))
def test_a_path_that_is_no_text_is_refused_before_anything_is_written(
    tmp_path: Path, system: ServiceManager
) -> None:
    with pytest.raises(ResourceError, match="is not valid text"):
        service_for(setting(tmp_path, system), ("python", os.fsdecode(b"/home/\xff")))


def test_each_home_has_a_service_of_its_own(tmp_path: Path) -> None:
    assert name_for(None, ServiceRole.SERVER) == "sark-node-server"
    names = {name_for(None), name_for(tmp_path / "a"), name_for(tmp_path / "b")}
    assert len(names) == 3
    assert name_for(None) == "sark-node"


# -- writing and removing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", list(ServiceManager))
def test_install_writes_enables_and_says_where_things_are(tmp_path: Path, system: ServiceManager) -> None:
    here = setting(tmp_path, system)
    command = ("python", "-m", "sark", "join")
    made, run, result = service_for(here, command), Commands(Query=1), []
    assert install(here, command, run, result.append)
    assert made.path.read_text(encoding=made.encoding) == made.text
    if made.path.stat().st_mode & 0o777:
        assert not made.path.stat().st_mode & 0o077
    assert [" ".join(step.command) for step in made.enable] == [
        line for line in run.asked if "Query" not in line
    ]
    whole = "\n".join(result)
    assert str(made.path) in whole
    assert made.log in whole
    assert "joins again after each reboot" in whole
    assert install(here, (*command, "--on-battery"), Commands(), result.append), (
        "its own file may be written again"
    )
    assert "--on-battery" in made.path.read_text(encoding=made.encoding)
    assert uninstall(here, Commands(), result.append)
    assert not made.path.exists()
    assert not uninstall(here, Commands(), result.append)
    assert [path for path in made.path.parent.iterdir() if path.is_file()] == []


@pytest.mark.parametrize("system", [ServiceManager.SYSTEMD, ServiceManager.LAUNCHD])
@pytest.mark.parametrize(
    "text", ["[Unit]\nDescription=another\n", "", "written by sark-node for /else/data;"]
)
def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path, system: ServiceManager, text: str) -> None:
    here, run = setting(tmp_path, system), Commands()
    path = service_for(here, ("python",)).path
    path.parent.mkdir(parents=True)
    path.write_text(text)
    for attempt in (lambda: install(here, ("python",), run, print), lambda: uninstall(here, run, print)):
        with pytest.raises(ResourceError, match="was not written for this home"):
            attempt()
    assert path.read_text() == text
    assert run.asked == []


def test_a_task_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    run = Commands()
    with pytest.raises(ResourceError, match="a task named sark-node already exists"):
        install(setting(tmp_path, ServiceManager.WINDOWS), ("python",), run, print)
    assert len(run.asked) == 1


def test_where_the_system_does_not_start_the_service_the_commands_are_shown(tmp_path: Path) -> None:
    lines: list[str] = []
    run = Commands(**{"daemon-reload": 127})
    assert not install(setting(tmp_path), ("python",), run, lines.append)
    whole = "\n".join(lines)
    assert "failed: systemctl --user daemon-reload: it says no" in whole
    assert "then run: systemctl --user enable sark-node.service" in whole
    assert "not running yet" in whole
    assert len(run.asked) == 1


@pytest.mark.parametrize(("busy", "well"), [(3, True), (99, False)])
def test_launchd_is_asked_again_while_the_job_of_before_is_still_there(
    tmp_path: Path, busy: int, well: bool
) -> None:
    requests: list[str] = []

    def run(command: Sequence[str]) -> tuple[int, str]:
        requests.extend([command[1]] if command[1] == "bootstrap" else [])
        return (5, "Bootstrap failed: 5: Input/output error") if 0 < len(requests) <= busy else (0, "")

    waited: list[float] = []
    here = setting(tmp_path, ServiceManager.LAUNCHD)
    assert install(here, ("python",), run, lambda line: None, pause=waited.append) is well
    assert len(waited) == len(requests) - 1 == (3 if well else STILL_THERE - 1)


def test_lingering_that_is_not_allowed_is_a_hint_and_no_failure(tmp_path: Path) -> None:
    lines: list[str] = []
    assert install(setting(tmp_path), ("python",), Commands(**{"enable-linger": 1}), lines.append)
    assert any("sudo loginctl enable-linger ann" in line for line in lines)


def test_a_worker_that_already_runs_is_reported_only_at_the_first_install(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    assert not works_here(home)
    for result in (True, False):
        lines: list[str] = []
        with lock_folder(home.folder("worker")):
            assert install(
                setting(tmp_path), ("python",), Commands(), lines.append, busy=lambda: works_here(home)
            )
        assert any("already: the service starts when" in line for line in lines) is result


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / ".config").write_text("a file")
    with pytest.raises(ResourceError, match="cannot use"):
        install(setting(tmp_path), ("python",), Commands(), print)


def test_what_this_system_is_and_who_asks_is_found_out(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    linux = setting_here(home, None, {}, platform="linux", root=False)
    assert (linux.system, linux.home, linux.data) == (ServiceManager.SYSTEMD, None, home.data)
    assert setting_here(home, tmp_path, {}, platform="darwin").system is ServiceManager.LAUNCHD
    assert linux.environment == ()
    moved = setting_here(home, tmp_path, {"XDG_CONFIG_HOME": "/x"}, platform="linux", root=False)
    assert moved.environment == (), "its home was named"
    shell = {"XDG_DATA_HOME": "/d", "LD_LIBRARY_PATH": "/lib", "SECRET": "x"}
    result = setting_here(home, None, shell, platform="linux", root=False)
    assert result.environment == (("XDG_DATA_HOME", "/d"), ("LD_LIBRARY_PATH", "/lib"))
    by_sudo = setting_here(home, None, {}, platform="darwin", root=True)
    assert by_sudo.environment == (("HOME", str(Path.home())),), "or the daemon would have a home of its own"
    assert service_for(moved, ("python",)).path.parent == Path("/x/systemd/user")
    assert moved.home == tmp_path


def test_commands_that_are_not_there_fail_and_nothing_more() -> None:
    assert run_command([sys.executable, "-c", "print('well')"]) == (0, "well")
    assert run_command(["there-is-no-such-program"])[0] == 127


def test_a_worker_is_run_again_until_it_left_in_good_order_or_its_settings_are_wrong() -> None:
    for last in (0, 2, 5):
        codes, waited = iter([1, 6, -9, last, 1]), list[float]()
        assert again_of(lambda codes=codes: next(codes), waited.append) == last  # type: ignore[misc]
        assert waited == [AGAIN_S] * 3
    assert main_of([sys.executable, "-c", "raise SystemExit(2)"]) == 2


# -- arguments of the service --------------------------------------------------------------------------------------------


def again(*words: str) -> list[str]:
    group = typer.main.get_command(node.cli.main.app)
    join = group.commands["join"]  # type: ignore[attr-defined]
    return options_given(join.make_context("join", list(words)))


def test_the_service_joins_with_the_same_arguments_but_for_what_was_for_once() -> None:
    given = ["--gate", "/ip4/a", "--gate", "/ip4/b", "--name", "lab 3", "--label", "site=lab", "--on-battery"]
    words = again("sark1secret", *given, "--install", "--leave-pool", "old", "--no-calibrate")
    assert words == [*given, "--no-calibrate"]
    assert not any("sark1secret" in word for word in service_command(None, words))
    assert again() == []


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["--serve"], ["--serve", "5000"]),
        (["--serve", "--name", "x"], ["--serve", "5000", "--name", "x"]),
        (["--serve", "sark1abc"], ["--serve", "5000", "sark1abc"]),
        (["--serve", "0.0.0.0:80,name"], ["--serve", "0.0.0.0:80,name"]),
        (["--serve=8080"], ["--serve", "8080"]),
        (["--api=http://127.0.0.1:8000/v1"], ["--api=http://127.0.0.1:8000/v1"]),
        (["--api", "http://127.0.0.1:8000/v1,fast"], ["--api", "http://127.0.0.1:8000/v1,fast"]),
        (["--", "--serve"], ["--", "--serve"]),
    ],
)
def test_serving_needs_no_port(typed: list[str], words: list[str]) -> None:
    assert with_places(typed) == words


@pytest.mark.parametrize(
    ("typed", "place"),
    [
        (["--api", "5000"], "5000"),
        (["--api=127.0.0.1:5001,name", "--upnp"], "127.0.0.1:5001,name"),
        (["--api", "--upnp"], "5000"),
        (["--api"], "5000"),
    ],
)
def test_api_is_for_a_server_of_models_and_a_port_is_of_serve(typed: list[str], place: str) -> None:
    with pytest.raises(SettingsError) as caught:
        with_places(typed)
    assert f"sark-node join --serve {place}\n" in caught.value.hint
    assert caught.value.exit_code == 2


def test_the_port_is_that_of_serve_and_a_service_keeps_it() -> None:
    assert int(SERVE_PORT) == web.cli.PORT
    assert again("--serve", "--on-battery") == ["--on-battery", "--serve", SERVE_PORT]


def test_the_service_has_the_same_home(tmp_path: Path) -> None:
    words = service_command(tmp_path / "h", ["join", "--simulate"])
    assert words[0] == sys.executable
    assert words[-4:] == ("--home", str(tmp_path / "h"), "join", "--simulate")


def test_a_server_is_a_service_beside_the_worker_of_its_home(tmp_path: Path) -> None:
    words = service_command(tmp_path / "h", ["serve", "--port", "5001"])
    for system in ServiceManager:
        worker = service_for(setting(tmp_path, system), words)
        server = service_for(replace(setting(tmp_path, system), role=ServiceRole.SERVER), words)
        assert worker.name != server.name
        assert worker.path != server.path
        assert "Sark server" in server.text or "server" in server.name


def test_what_is_served_after_a_reboot_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    server = replace(setting(tmp_path), role=ServiceRole.SERVER)
    assert install(server, COMMAND, lambda command: (0, ""), said.append)
    assert any("open campaigns go on" in line for line in said)
    assert uninstall(server, lambda command: (0, ""), said.append)
    assert any("is not served" in line for line in said)


def test_variables_that_the_service_would_not_hear_are_named() -> None:
    environment = {"SARK_HOME": "/h", "SARK_GATES": "x", "SARK_API_KEY": "secret", "PATH": "/bin"}
    assert not_carried(environment) == ("SARK_API_KEY", "SARK_GATES")
