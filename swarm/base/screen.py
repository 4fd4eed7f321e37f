"""A live view on a terminal: one way for all commands that go on showing how things stand.

It has the alternate screen, so what stood on the terminal before stands there again afterwards, however it ends: Ctrl-C, `q`, SIGTERM,
Ctrl-Z and back. Of a new picture only the lines that differ from the last one are written, all in one piece: nothing flickers, and where
nothing has changed nothing is written.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, Final, TextIO

from rich.console import Console, RenderableType
from rich.text import Text

if sys.platform != "win32":
    import select
    import termios

ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
"""The alternate screen, no cursor, no wrapping: a line that is wider than we think must not push those below it."""
LEAVE: Final = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
AT_ONCE: Final = ("\x1b[?2026h", "\x1b[?2026l")
"""Around what a terminal may show in one step; those that do not know it pass over it."""
WHOLE_S: Final = 10.0
"""After so long all lines are written again: a log line, or another program's, may have been written over them."""
ANEW: Final = b"\x0c"
"""Ctrl-L: draw all of it again."""
QUIT: Final = b"qQ"


def can_live(console: Console) -> bool:
    """Whether a live view can be had there: on a terminal that can move its cursor, and not from the background of a shell."""
    if not console.is_terminal or console.is_dumb_terminal or console.legacy_windows:
        return False
    if not console.file.isatty():  # FORCE_COLOR has pipes look like terminals
        return False
    if sys.platform == "win32":
        return True
    try:
        return os.tcgetpgrp(console.file.fileno()) == os.getpgrp()
    except OSError:  # a terminal, though not the one that controls us
        return True


def changes(before: Sequence[str] | None, after: Sequence[str], size: tuple[int, int]) -> str:
    """What has a screen of `size` (columns, lines) that shows `before` (None: nobody knows what) show `after`; empty: nothing.

    The lines may have colours; none is wider than the screen.
    """
    columns, rows = size
    old = before or ()
    parts = [
        f"\x1b[{n + 1};1H{line}" + ("\x1b[K" if Text.from_ansi(line).cell_len < columns else "")
        for n, line in enumerate(after)
        if n >= len(old) or old[n] != line
    ]
    if len(after) < (rows if before is None else len(old)):
        parts.append(f"\x1b[{len(after) + 1};1H\x1b[J")
    return f"{AT_ONCE[0]}{''.join(parts)}{AT_ONCE[1]}" if parts else ""


class Screen:
    """A picture that stays in place for as long as the context lasts."""

    def __init__(
        self, console: Console, typed: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`typed`: where keys come from; None: standard input. `clock`: in seconds."""
        self._console = console
        self._keys = _Keys(sys.stdin if typed is None else typed)
        self._shown: list[str] | None = None
        self._clock = clock
        self._size = (0, 0)
        self._all_at = 0.0
        self._signals: dict[int, Any] = {}

    def __enter__(self) -> Screen:
        with _undisturbed():
            if self._console.file.isatty() and _main_thread():
                for name in ("SIGTERM", "SIGHUP", "SIGTSTP"):
                    number = getattr(signal, name, None)  # Windows has but the first
                    if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                        self._signals[number] = signal.signal(number, self._step_aside)
            self._enter()
        return self

    def __exit__(self, *exc: object) -> None:
        with _undisturbed():
            self._leave()
            for number, handler in self._signals.items():
                signal.signal(number, handler)

    def show(self, picture: RenderableType) -> None:
        """Show it, cut to the terminal as it is now. Raises `KeyboardInterrupt` if `q` was typed."""
        typed = self._keys.typed()
        if any(key in typed for key in QUIT):
            raise KeyboardInterrupt
        size, now = (self._console.size.width, self._console.size.height), self._clock()
        if size != self._size or ANEW in typed or now - self._all_at >= WHOLE_S:
            self._shown, self._size = None, size
        if self._shown is None:
            self._all_at = now
        lines = self._lines(picture, size[1])
        told = changes(self._shown, lines, size)
        if told:
            self._shown = (
                lines  # before it is written: what was stopped in the middle of it begins with nothing
            )
            self._write(told)

    def _lines(self, picture: RenderableType, height: int) -> list[str]:
        with self._console.capture() as captured:
            self._console.print(picture)
        lines = captured.get().removesuffix("\n").split("\n")
        if len(lines) > height:
            hidden = len(lines) - height + 1
            lines[height - 1 :] = [f"… {hidden} more lines"]
        return lines

    def _enter(self) -> None:
        self._keys.quiet()
        self._write(ENTER)
        self._shown = None

    def _leave(self) -> None:
        with contextlib.suppress(OSError):  # nobody looks any more
            self._write(LEAVE)
        self._keys.loud()

    def _write(self, text: str) -> None:
        try:
            self._console.file.write(text)
            self._console.file.flush()
        except RuntimeError:  # a signal came while a slow terminal took a picture: Python lets nobody else write to the file then
            os.write(self._console.file.fileno(), text.encode())

    def _step_aside(self, number: int, frame: FrameType | None) -> None:
        """Leave the terminal as it was, do what the signal does by itself, and be back if that was to wait."""
        self._leave()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        signal.signal(number, self._step_aside)  # after Ctrl-Z: somebody has brought us to the foreground
        self._enter()


def _main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C waits: half a way into the alternate screen, or out of it, nobody could bring back the terminal."""
    if not _main_thread():
        yield
        return
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if heard:
            signal.raise_signal(signal.SIGINT)


class _Keys:
    """What is typed, neither shown nor waited for; none where there is no terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._fd: int | None = None
        self._before: list[Any] | None = None
        with contextlib.suppress(OSError, ValueError):  # closed, or of a test
            if sys.platform != "win32" and stream.isatty():
                self._fd = stream.fileno()

    def quiet(self) -> None:
        """Keys are not shown, and come one by one; Ctrl-C is what it was."""
        if sys.platform == "win32" or self._fd is None:
            return
        with contextlib.suppress(termios.error):
            self._before = termios.tcgetattr(self._fd)
            changed = list(self._before)
            changed[3] &= ~(termios.ECHO | termios.ICANON)
            termios.tcsetattr(self._fd, termios.TCSANOW, changed)

    def loud(self) -> None:
        """As it was; what was typed meanwhile is for nobody."""
        if sys.platform == "win32" or self._fd is None or self._before is None:
            return
        with contextlib.suppress(termios.error):
            termios.tcflush(self._fd, termios.TCIFLUSH)
            termios.tcsetattr(
                self._fd, termios.TCSANOW, self._before
            )  # to drain it first would wait for who reads

    def typed(self) -> bytes:
        """What was typed since the last time."""
        if sys.platform == "win32" or self._fd is None:
            return b""
        try:
            if not select.select([self._fd], [], [], 0)[0]:
                return b""
            heard = os.read(self._fd, 1024)
        except OSError:
            heard = b""
        if not heard:  # it was closed
            self._fd = None
        return heard
