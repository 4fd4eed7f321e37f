"""The log files of a home: written by one process, rotated, and read back by time, level, role and subject."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from typer.testing import CliRunner

import sark
from swarm.base import log_files
from swarm.base.log_files import LogFile, LogFilter, files_of, new_lines, read_line, stored_lines
from swarm.base.logs import set_up_logs


@pytest.fixture
def restored() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level, structlog.get_config())
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:], level, config = before
    root.setLevel(level)
    structlog.configure(**config)


def line(at: int, event: str = "ran", level: str = "info", **fields: object) -> str:
    return (
        json.dumps({"event": event, "level": level, "timestamp": f"2026-11-23T00:00:{at:02}Z"} | fields)
        + "\n"
    )


def events(folder: Path, wanted: LogFilter = LogFilter()) -> list[str]:
    return [one.event for one in stored_lines(folder, wanted)]


def test_a_process_writes_what_its_terminal_does_not_show_and_no_secret(
    tmp_path: Path, restored: None, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    path = tmp_path / "logs" / "worker.jsonl"
    set_up_logs(sys.stderr, level=logging.WARNING, plain=True, file=path)
    log = structlog.get_logger("ours")
    log.debug("detail")
    log.info("granted", task="c-1/2", token="hush")
    try:
        raise ValueError("inner")
    except ValueError:
        log.exception("run.failed", task="c-1/2")
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    assert [(one["event"], one["level"]) for one in lines] == [("granted", "info"), ("run.failed", "error")]
    assert lines[0]["token"] == "(left out)"
    assert "ValueError: inner" in lines[1]["exception"]
    assert path.stat().st_mode & 0o777 == 0o600
    shown = capsys.readouterr().err
    assert "granted" not in shown
    assert shown.startswith("sark-node: run failed: task c-1/2")


def test_files_are_rotated_and_read_in_order_over_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "MAX_BYTES", 400)
    handler = LogFile(tmp_path / "worker.jsonl")
    handler.setFormatter(logging.Formatter("%(message)s"))
    for at in range(60):
        handler.emit(logging.makeLogRecord({"msg": line(at, f"e{at}").strip()}))
    handler.close()
    paths = files_of(tmp_path)["worker"]
    assert len(paths) == log_files.MAX_FILES + 1
    assert all(path.stat().st_size <= 400 for path in paths)
    read = events(tmp_path)
    assert read == [f"e{at}" for at in range(60 - len(read), 60)]


def test_a_full_disk_drops_lines_and_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = LogFile(tmp_path / "worker.jsonl")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log_files.os, "open", full)
    handler.emit(logging.makeLogRecord({"msg": "one"}))
    monkeypatch.undo()
    handler.emit(logging.makeLogRecord({"msg": line(1).strip()}))
    handler.close()
    assert events(tmp_path) == ["ran"]


def test_lines_of_all_roles_are_merged_by_time_and_chosen_by_level_role_and_id(tmp_path: Path) -> None:
    (tmp_path / "worker.jsonl").write_text(
        line(1, "a", task="c-1/2")
        + "torn {\n"
        + line(4, "d", "warning", tasks=["c-12/1"])
        + line(5, "e", campaign="c-1")
    )
    (tmp_path / "scheduler.jsonl").write_text(
        line(2, "b", "debug", task="c-1/2") + line(3, "c", task="c-1/20")
    )
    assert events(tmp_path) == ["a", "c", "d", "e"]
    assert events(tmp_path, LogFilter(level=logging.DEBUG)) == ["a", "b", "c", "d", "e"]
    assert events(tmp_path, LogFilter(level=logging.WARNING)) == ["d"]
    assert events(tmp_path, LogFilter(roles=frozenset({"worker"}))) == ["a", "d", "e"]
    assert events(tmp_path, LogFilter(about=("c-1",))) == ["a", "c", "e"]
    assert events(tmp_path, LogFilter(about=("c-1/2",))) == ["a"]


def test_lines_of_one_instant_that_differ_in_the_kinds_of_their_values_are_merged_too(tmp_path: Path) -> None:
    for role, value in (("worker", None), ("gate", {"a": 1}), ("serve", "text")):
        (tmp_path / f"{role}.jsonl").write_text(line(1, "same", why=value))
    assert events(tmp_path) == ["same"] * 3


def test_new_lines_are_followed_over_a_rotation_and_a_line_that_is_half_written(tmp_path: Path) -> None:
    path = tmp_path / "worker.jsonl"
    path.write_text(line(1, "old"))
    steps = itertools.count()

    def pause(_: float) -> None:
        match next(steps):
            case 0:
                with path.open("a") as out:
                    out.write(line(2, "a") + line(3, "b")[:20])
            case 1:
                with path.open("a") as out:
                    out.write(line(3, "b")[20:] + line(4, "c"))
                path.rename(tmp_path / "worker.jsonl.1")
                path.write_text(line(5, "d"))
            case 2:
                (tmp_path / "gate.jsonl").write_text(
                    line(6, "of another role", n=None) + line(6, "of another role", n=1)
                )
            case _:
                raise AssertionError("lines are missing")

    found = [one.event for one in itertools.islice(new_lines(tmp_path, LogFilter(), pause), 6)]
    assert found == ["a", "b", "c", "d", "of another role", "of another role"]


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', "{}", "nul\0"])
def test_what_is_no_line_is_left_out(text: str) -> None:
    assert read_line(text, "worker") is None


def test_the_command_shows_them_and_says_where_none_are(tmp_path: Path) -> None:
    def run(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(sark.app, ["--home", str(tmp_path), "logs", *words])
        return result.exit_code, result.output if result.exception is None else str(result.exception)

    assert "there is no log file of any process" in run()[1]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker.jsonl").write_text(
        line(1, "a", task="c-1/2") + line(2, "b", why="it\x1b[31m said no") + line(3, "c")
    )
    code, output = run("-n", "2")
    assert code == 0
    assert [text.split()[4] for text in output.splitlines()] == ["b", "c"]
    assert 'why="it\\x1b[31m said no"' in output
    assert json.loads(run("--json", "c-1")[1])["task"] == "c-1/2"
    assert "there is no log file of a gate" in run("--role", "gate")[1]
    assert run("--level", "loud")[0] == 2
