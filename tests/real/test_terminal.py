"""Live views on a real terminal: they keep its settings, follow its size, and restore it at the end."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from swarm.base.screen import ENTER, LEAVE
from tests.real.lab import Lab, campaign, script, until


class Terminal:
    """A terminal of 80 × 24 whose other end the test holds, with a command running on it."""

    def __init__(self, command: list[str], environment: Mapping[str, str], cwd: Path) -> None:
        self._ours, theirs = pty.openpty()
        self._theirs = theirs  # kept open, because the test reads its settings at the end
        self.resize(80, 24)
        self.before = termios.tcgetattr(theirs)
        self.output = ""
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=cwd,
            env=dict(environment),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def settings(self) -> list[object]:
        return termios.tcgetattr(self._theirs)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def until(self, words: str, after: int = 0) -> None:
        """Read output until the words appear. Raises AssertionError with the actual output otherwise."""

        def come() -> bool:
            self._hear()
            return words in self.output[after:]

        try:
            until(come, words)
        except AssertionError:
            raise AssertionError(f"{words!r} not in {self.output[after:]!r}") from None

    def _hear(self) -> None:
        while select.select([self._ours], [], [], 0)[0]:
            self.output += os.read(self._ours, 65536).decode(errors="replace")

    def ended(self) -> int:
        """Wait for the end of the command and of its output. Returns its exit code."""
        until(self._is_over, "it ends")
        return self.process.returncode

    def _is_over(self) -> bool:
        over = self.process.poll() is not None  # checked first, so that the last output is there
        self._hear()
        return over

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@contextmanager
def on_terminal(lab: Lab, *arguments: str, home: str = "ada", **more: str) -> Iterator[Terminal]:
    cwd = lab.folder / home
    cwd.mkdir(parents=True, exist_ok=True)
    environment = {**lab.environment(home), "TERM": "xterm-256color", **more}
    terminal = Terminal(lab.command(home, *arguments), environment, cwd)
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.mark.parametrize(
    ("home", "arguments", "first_words"),
    [("ada", ("top",), "sark-node top  2 devices"), ("gate", ("gate", "status", "--live"), "admits")],
    ids=["top", "gate"],
)
def test_a_live_view_follows_the_size_and_gives_the_terminal_back_after_ctrl_c(
    lab: Lab, home: str, arguments: tuple[str, ...], first_words: str
) -> None:
    with on_terminal(lab, *arguments, "--gate", lab.gate, home=home) as terminal:
        terminal.until(first_words)
        assert ENTER in terminal.output
        assert terminal.settings() != terminal.before, "keys are not shown where there is a picture"
        drawn = len(terminal.output)
        terminal.resize(60, 12)
        terminal.until("quits" if home == "ada" else "admits", after=drawn)
        terminal.type("\x03")
        assert terminal.ended() == 0
        assert terminal.output.endswith(LEAVE)
        assert terminal.output.count(ENTER) == 1
        assert terminal.settings() == terminal.before


def test_a_campaign_is_watched_on_a_terminal_left_with_a_key_and_goes_on(lab: Lab, tmp_path: Path) -> None:
    slow = script(tmp_path, "模型-🚀-a-long-name.json", sleep=True, latencies_ms=[20_000.0])
    result = lab.detach("ada", campaign(tmp_path, "watched", [slow]))
    try:
        with on_terminal(lab, "watch", result, NO_COLOR="1") as terminal:
            terminal.until("q or Ctrl-C leaves it running")
            assert "0 of 1 done" in terminal.output
            assert not re.search(r"\x1b\[[\d;]*3\dm", terminal.output), "no colours"
            terminal.type("q")
            assert terminal.ended() == 130
            assert LEAVE in terminal.output
            assert terminal.output.rstrip().endswith(f"Watch it: sark-node watch {result}")
        with on_terminal(lab, "watch", result) as terminal:
            terminal.until("0 of 1 done")
            terminal.process.send_signal(signal.SIGTERM)
            assert terminal.ended() == -signal.SIGTERM
            assert terminal.output.endswith(LEAVE), "also when it is ended from elsewhere"
            assert terminal.settings() == terminal.before
        with on_terminal(lab, "watch", result, TERM="dumb") as terminal:
            terminal.until(f"{result}/1  ")
            assert "\x1b" not in terminal.output, "a terminal that can do nothing gets lines"
            terminal.type("\x03")
            assert terminal.ended() == 130
    finally:
        lab.run("ada", "cancel", result)


def test_a_live_view_that_was_stopped_gives_the_terminal_back_and_comes_again(lab: Lab) -> None:
    with on_terminal(lab, "top") as terminal:
        terminal.until("sark-node top")
        terminal.process.send_signal(signal.SIGTSTP)
        terminal.until(LEAVE)
        terminal.process.send_signal(signal.SIGCONT)
        terminal.until(LEAVE + ENTER)
        terminal.until("sark-node top", after=terminal.output.index(LEAVE + ENTER))
        terminal.type("q")
        assert terminal.ended() == 0
        assert terminal.settings() == terminal.before
