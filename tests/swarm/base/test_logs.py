"""One pipe for log lines, and nothing in them that a stranger could abuse."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from swarm.base.logs import make_safe, plain_line, set_up_logs
from swarm.base.text import escape_text


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level, structlog.get_config())
    stream = io.StringIO()
    set_up_logs(stream)
    yield stream
    root.handlers[:], level, config = before
    root.setLevel(level)
    structlog.configure(**config)


def test_both_kinds_of_loggers_write_json_lines(lines: io.StringIO) -> None:
    structlog.get_logger("ours").info("granted", lease=7)
    logging.getLogger("theirs").warning("said %s", "something")
    own, theirs = (json.loads(line) for line in lines.getvalue().splitlines())
    assert (own["event"], own["lease"], own["level"]) == ("granted", 7, "info")
    assert (theirs["event"], theirs["level"]) == ("said something", "warning")
    assert "timestamp" in own


def test_libp2p_is_silent(lines: io.StringIO) -> None:
    logging.getLogger("libp2p.kad_dht.kad_dht").error("whole value of a stranger")
    logging.getLogger("libp2p.network.auto_connector").info("state")
    assert lines.getvalue() == ""


def test_terminal_escapes_are_written_out(lines: io.StringIO) -> None:
    structlog.get_logger("ours").info("peer", name="\x1b]52;c;evil\x07 \x9b31m \u202e\n second line")
    assert "\\\\x1b]52" in lines.getvalue()
    assert len(lines.getvalue().splitlines()) == 1


@pytest.mark.parametrize("name", ["seed", "token", "join_ticket", "api_key", "PASSWORD"])
def test_secrets_are_left_out(name: str) -> None:
    assert make_safe(None, "info", {name: "hunter2"}) == {name: "(left out)"}


@given(st.text(max_size=2000))
def test_a_safe_text_is_short_and_printable(text: str) -> None:
    made = escape_text(text)
    assert len(made) <= 512
    assert all(char.isprintable() or char.isspace() for char in made)
    assert not set(made) & set("\x1b\x9b\u202e\n\r\x00")


def test_long_and_nested_values_are_cut() -> None:
    event = make_safe(None, "info", {"value": {"a": ["x" * 5000, b"\x00" * 5000], "n": 3}})
    assert all(len(item) <= 512 for item in event["value"]["a"])
    assert event["value"]["n"] == 3


def test_whoever_types_a_command_reads_plain_lines() -> None:
    assert (
        plain_line(None, "", {"event": "gate x is gone", "level": "warning"}) == "sark-node: gate x is gone"
    )
    noted = {"event": "device.note", "note": "no GPU", "level": "warning", "timestamp": "12:00"}
    assert plain_line(None, "", noted) == "sark-node: device note: no GPU"
    counted = {"event": "results.kept", "count": 3, "exception": "Traceback"}
    assert plain_line(None, "", counted) == "sark-node: results kept: count 3\nTraceback"
