"""The whole program: its packages are its own, errors are caught in one place, and tests wait for conditions, not for time."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import sark

ROOT = Path(sark.__file__).parent


def sources(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    """Every Python file in these folders: its path from the root, and its syntax tree."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def test_all_packages_are_ours() -> None:
    assert sark.foreign_packages() == {}


def test_each_command_is_where_the_program_looks_for_it() -> None:
    places = {
        names: importlib.import_module(place).app if isinstance(place, str) else place()
        for names, place in sark.COMMANDS.items()
    }
    assert {names: " ".join(typer.main.get_group(app).commands) for names, app in places.items()} == {
        names: names for names in places
    }


def test_other_words_for_commands_are_no_commands_and_lead_to_some() -> None:
    commands = {name for names in sark.COMMANDS for name in names.split()}
    assert commands >= {*sark.OTHER_NAMES.values()}
    assert commands.isdisjoint(sark.OTHER_NAMES)


HEAVY = ("libp2p", "httpx", "requests", "zeroconf", "numpy", "onnxruntime", "onnx", "fastapi", "hypercorn")
OFFLINE = (*HEAVY, "multiaddr", "trio", "cryptography", "psutil")
ROWS = (
    "results.row.row",
    "results.row.record",
    "protocol.values.record",
    "protocol.messages.work",
    "scheduler.core.state",
)
OTHERS = ("sqlalchemy.dialects.postgresql", "scheduler.core.commands", "scheduler.submit.daemon", "filelock")
"""The parts for a store on a server, for the scheduler process, and for finding out whether one runs."""


@pytest.mark.parametrize(
    ("words", "unwanted"),
    [
        (["--version"], (*OFFLINE, "pydantic", "sqlalchemy", "structlog", "asyncio", "yaml")),
        (["campaigns"], (*OFFLINE, *ROWS, *OTHERS[:2])),
        (["results"], (*OFFLINE, *OTHERS)),
        (["explain"], (*OFFLINE, *OTHERS, "scheduler.core.ranking")),
    ],
)
def test_a_command_imports_what_it_needs(words: list[str], unwanted: tuple[str, ...], tmp_path: Path) -> None:
    program = f"""import contextlib, sark
with contextlib.suppress(SystemExit): sark.main({["--home", str(tmp_path), *words]!r})
import sys; print(*sys.modules)"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert sorted(set(done.stdout.splitlines()[-1].split()) & set(unwanted)) == []


IDLE = (
    *("numpy", "onnxruntime", "onnx", "sqlalchemy", "sqlite3", "fastapi", "hypercorn", "plistlib", "httpx"),
    *("requests", "http.client", "zeroconf", "miniupnpc", "aioquic", "dns", "Crypto", "coincurve"),
)
"""Modules that an idle worker does not need."""


@pytest.mark.real
def test_an_idle_worker_holds_nothing_that_it_has_no_use_for(tmp_path: Path) -> None:
    words = ["--home", str(tmp_path), "join", "--no-calibrate", "--no-lan", "--stop-with-stdin"]
    program = f"""import contextlib, sark
with contextlib.suppress(SystemExit): sark.main({[*words, "--listen", "/ip4/127.0.0.1/tcp/0"]!r})
import sys; print(*sys.modules)"""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert "is a worker now" in worker.stdout.readline()
        worker.stdin.close()
        held = worker.stdout.read().splitlines()[-1].split()
    assert "libp2p.host.basic_host" in held
    assert sorted(set(held) & set(IDLE)) == []


def test_a_name_that_the_terminal_cannot_show_is_shown_in_part_and_ends_nothing() -> None:
    program = "import sark; sark.app.command('say')(lambda: print('für ▶')); sark.main(['say'])"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "f\\xfcr \\u25b6\n", "")


def test_a_foreign_package_under_one_of_our_names_is_reported(tmp_path: Path) -> None:
    theirs = tmp_path / "gate"
    theirs.mkdir()
    (theirs / "__init__.py").write_text("OPENS = True\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sark", "campaigns"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "SARK_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 6
    first, *more = done.stderr.splitlines()
    assert f"gate ({theirs / '__init__.py'})" in first
    assert "venv" in " ".join(more)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


BROAD = {
    "sark.py": "the outermost edge: separates bugs from errors with a line of their own",
    "drivers/transformers/tokenizer.py": "a folder's tokenizer raises what it likes; it costs that model's answers",
    "web/http/server.py": "what a stranger sends costs his connection, not the server",
    "swarm/p2p/node_host.py": "a handler's bug costs the stranger's stream, not the node",
    "swarm/memory/parts.py": "the same in the simulated network",
    "node/run/runner.py": "a bug costs one run, not the node with all others",
    "results/scoring/plugins.py": "a task or metric of somebody's package costs a score, not the scheduler",
    "swarm/p2p/handshakes.py": "the libraries raise errors of their own for bytes that are no handshake; each becomes a failed handshake",
    "swarm/relay/hole_punch.py": "a bug must not let a stranger's circuit end the node",
    "swarm/reach/upnp.py": "the library raises plain exceptions; each becomes an error of ours",
}


def test_everything_is_caught_at_the_edges_only() -> None:
    program = ("sark.py", ast.parse((ROOT / "sark.py").read_text("utf-8")))
    broad = [
        name
        for name, tree in [*sources(*sark.PACKAGES), program]
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and catches_everything(node) and not raises_again(node)
    ]
    assert sorted(broad) == sorted(BROAD)


def catches_everything(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(kind, ast.Name) and kind.id in {"Exception", "BaseException"} for kind in caught)


def raises_again(handler: ast.ExceptHandler) -> bool:
    """Whether the handler only cleans up: its last statement is a bare `raise`."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def test_tests_wait_for_conditions_and_not_for_time() -> None:
    """A sleep is allowed in a polling loop, under a simulated clock, or for at most 10 ms."""
    apart = ("tests/rig/", "tests/durability/")  # attackers; recordings, which have their own clock
    trees = {name: tree for name, tree in sources("tests") if not name.startswith(apart)}
    simulated = {Path(name).parent for name, tree in trees.items() if speaks_of_a_clock(tree)}
    idle = [
        f"{name}:{node.lineno}"
        for name, tree in trees.items()
        if not speaks_of_a_clock(tree)
        and not (
            name.endswith("conftest.py")
            and any(Path(name).parent in (tried, *tried.parents) for tried in simulated)
        )
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and is_sleep(node.func)
        and not is_moment(node)
        and not in_a_loop(tree, node)
    ]
    assert idle == []


def is_sleep(called: ast.expr) -> bool:
    return (
        isinstance(called, ast.Attribute)
        and called.attr == "sleep"
        and isinstance(called.value, ast.Name)
        and called.value.id in {"time", "trio"}
    )


def is_moment(call: ast.Call) -> bool:
    return bool(call.args) and isinstance(call.args[0], ast.Constant) and float(call.args[0].value) <= 0.01


def in_a_loop(tree: ast.Module, wanted: ast.Call) -> bool:
    return any(
        isinstance(loop, ast.While | ast.For | ast.AsyncFor)
        and any(node is wanted for node in ast.walk(loop))
        for loop in ast.walk(tree)
    )


def speaks_of_a_clock(tree: ast.Module) -> bool:
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return bool(names & {"autojump_clock", "MockClock", "PatientClock"})


def test_no_file_speaks_of_the_folder_it_was_written_in() -> None:
    if len(str(ROOT)) < 8:  # a checkout in /src or /app, whose short path could occur by chance
        return
    texts = [
        path
        for pattern in ("*.md", "*.py", "*.toml", "*.txt", "*.yaml", "*.json", "Makefile")
        for path in ROOT.rglob(pattern)
        if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    ]
    assert len(texts) > 100
    assert [
        str(path) for path in texts if str(ROOT) in path.read_text(encoding="utf-8", errors="ignore")
    ] == []
