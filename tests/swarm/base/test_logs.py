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

from swarm.base.log_limits import MAX_KEPT, REPORT_S, LineLimiter
from swarm.base.logs import LEFT_OUT, make_safe, plain_line, set_up_logs, strangers_known
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


def flood(clock: list[float], lines: io.StringIO, peers: int, seconds: int, rate: int = 100) -> str:
    """The output for warnings about `peers` keys in turn."""
    set_up_logs(lines, clock=lambda: clock[0])
    log = structlog.get_logger("ours")
    for number in range(seconds * rate):
        log.warning("link.broken", peer=f"peer-{number % peers}", why="bad frame: " + "x" * 100)
        clock[0] += 1 / rate
    return lines.getvalue()


@pytest.mark.parametrize("peers", [1, 10_000])
def test_a_flood_of_warnings_is_a_trickle_of_lines_however_many_keys_send_it(
    lines: io.StringIO, peers: int
) -> None:
    written = flood([0.0], lines, peers, seconds=60)
    assert len(written) / 60 < 700
    assert written.count("link.broken") <= 130


@pytest.mark.parametrize(("kinds", "peers", "most"), [(1, 1, 4), (1, 10_000, 12), (30, 10_000, 36)])
@pytest.mark.parametrize("level", ["info", "warning"])
def test_strangers_write_a_few_lines_a_minute_whatever_they_do(
    lines: io.StringIO, level: str, kinds: int, peers: int, most: int
) -> None:
    clock = [0.0]
    set_up_logs(lines, clock=lambda: clock[0])
    log = structlog.get_logger("ours")
    with strangers_known(lambda peer: None if peer == "friend" else ""):
        for number in range(6_000):
            getattr(log, level)(f"kind-{number % kinds}", peer=f"peer-{number % peers}", why="x" * 100)
            clock[0] += 0.01
        for _ in range(5):
            log.warning("kind-0", peer="friend")
        clock[0] += REPORT_S
        log.info("idle")
    records = [json.loads(line) for line in lines.getvalue().splitlines()]
    written = [record for record in records if str(record.get("peer", "")).startswith("peer-")]
    assert len(written) <= most
    assert sum(record.get("peer") == "friend" for record in records) == 5
    reports = [record["lines"] for record in records if record["event"] == LEFT_OUT]
    assert sum(map(sum, (report.values() for report in reports))) + len(written) == 6_000


def test_one_network_of_strangers_leaves_lines_to_others() -> None:
    limiter = LineLimiter()
    for number in range(1_000):
        limiter.admits(f"kind-{number}", f"peer-{number}", True, 0.0, "192.0.2.0/24")
    assert limiter.admits("kind", "another", True, 0.0, "198.51.100.0/24")


def test_what_was_left_out_is_counted_in_one_line_a_minute(lines: io.StringIO) -> None:
    clock = [0.0]
    flood(clock, lines, 1, seconds=60)
    clock[0] += REPORT_S
    structlog.get_logger("ours").info("idle")
    records = [json.loads(line) for line in lines.getvalue().splitlines()]
    reports = [record["lines"] for record in records if record["event"] == LEFT_OUT]
    written = sum(record["event"] == "link.broken" for record in records)
    assert sum(report["link.broken"] for report in reports) + written == 6000
    assert len(reports) <= 3


def test_one_peers_flood_hides_no_other_peers_line_nor_our_own_news(lines: io.StringIO) -> None:
    flood([0.0], lines, 1, seconds=5)
    log = structlog.get_logger("ours")
    log.warning("link.broken", peer="another", why="it")
    for number in range(2000):
        log.info("task.done", task=number)
    assert lines.getvalue().count('"another"') == 1
    assert lines.getvalue().count("task.done") == 2000


def test_the_limiter_forgets_quiet_peers_so_that_keys_without_end_take_no_memory() -> None:
    limiter = LineLimiter()
    for number in range(3 * MAX_KEPT):
        limiter.admits("link.broken", f"peer-{number}", True, number / 10)
    assert len(limiter._tokens) <= MAX_KEPT


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
