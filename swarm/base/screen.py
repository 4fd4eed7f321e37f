"""A live view on a terminal, for every command that continuously shows a state.

It uses the alternate screen and restores the terminal however it ends: Ctrl-C, `q`, SIGTERM, Ctrl-Z and back. Only changed lines are
written, all at once, so nothing flickers.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Final, TextIO, cast

from rich.console import Console, RenderableType
from rich.text import Text

if sys.platform != "win32":
    import select
    import termios

ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
"""The alternate screen, no cursor, no wrapping: a line wider than expected must not push those below it."""
LEAVE: Final = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
SYNCHRONIZED: Final = ("\x1b[?2026h", "\x1b[?2026l")
"""Brackets a synchronized update; terminals that do not support it ignore it."""
REDRAW_S: Final = 10.0
"""Seconds after which all lines are rewritten, since other output may have overwritten them."""
REDRAW: Final = b"\x0c"
"""Ctrl-L."""
QUIT: Final = b"qQ"
PIPE_WIDTH: Final = 1000
"""Columns if there is no terminal, so that nothing is cut or wrapped."""
_PADDING: Final = re.compile(r"(?<! ) +(?=\n)")


def can_live(console: Console) -> bool:
    """Whether `console` can show a live view: a terminal that can move its cursor, and that is not in a shell's background."""
    if not console.is_terminal or console.is_dumb_terminal or console.legacy_windows:
        return False
    if not console.file.isatty():  # FORCE_COLOR makes pipes look like terminals
        return False
    if sys.platform == "win32":
        return True
    try:
        return os.tcgetpgrp(console.file.fileno()) == os.getpgrp()
    except OSError:  # a terminal, but not our controlling terminal
        return True


def changes(before: Sequence[str] | None, after: Sequence[str], size: tuple[int, int]) -> str:
    """The output that turns a screen of `size` (columns, lines) from `before` (None: unknown) into `after`; empty if they are equal.

    Lines may have colours; none is wider than the screen.
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
    return f"{SYNCHRONIZED[0]}{''.join(parts)}{SYNCHRONIZED[1]}" if parts else ""


class Screen:
    """A picture that stays in place until the context ends."""

    def __init__(
        self, console: Console, typed: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`typed`: where keys come from; None: standard input."""
        self._console = console
        self._keys = _Keys(sys.stdin if typed is None else typed)
        self._shown: list[str] | None = None
        self._clock = clock
        self._size = (0, 0)
        self._all_at = 0.0
        self._signals: dict[int, Any] = {}

    def __enter__(self) -> Screen:
        with _without_interrupts():
            if self._console.file.isatty() and _main_thread():
                for name in ("SIGTERM", "SIGHUP", "SIGTSTP"):
                    number = getattr(signal, name, None)  # Windows has only the first
                    if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                        self._signals[number] = signal.signal(number, self._suspend)
            self._enter()
        return self

    def __exit__(self, *exc: object) -> None:
        with _without_interrupts():
            self._leave()
            for number, handler in self._signals.items():
                signal.signal(number, handler)

    def show(self, picture: RenderableType) -> None:
        """Show `picture`, cut to the terminal. Raises `KeyboardInterrupt` if `q` was typed."""
        typed = self._keys.typed()
        if any(key in typed for key in QUIT):
            raise KeyboardInterrupt
        size, now = (self._console.size.width, self._console.size.height), self._clock()
        if size != self._size or REDRAW in typed or now - self._all_at >= REDRAW_S:
            self._shown, self._size = None, size
        if self._shown is None:
            self._all_at = now
        lines = self._lines(picture, size[1])
        output = changes(self._shown, lines, size)
        if output:
            self._shown = lines  # before the write: one that is interrupted starts over
            self._write(output)

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
        with contextlib.suppress(OSError):  # the terminal is gone
            self._write(LEAVE)
        self._keys.loud()

    def _write(self, text: str) -> None:
        try:
            self._console.file.write(text)
            self._console.file.flush()
        except RuntimeError:  # a signal interrupted a write to a slow terminal: the file is locked
            os.write(self._console.file.fileno(), text.encode())

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Restore the terminal, do what the signal does by default, and resume after Ctrl-Z."""
        self._leave()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        signal.signal(number, self._suspend)  # after Ctrl-Z and fg
        self._enter()


def _main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Delay Ctrl-C: if it came halfway into or out of the alternate screen, the terminal could not be restored."""
    if not _main_thread():
        yield
        return
    interrupts: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if interrupts:
            signal.raise_signal(signal.SIGINT)


class _Keys:
    """Keys typed, without echo and without waiting; none if there is no terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._fd: int | None = None
        self._before: list[Any] | None = None
        with contextlib.suppress(OSError, ValueError):  # closed, or a test's stream
            if sys.platform != "win32" and stream.isatty():
                self._fd = stream.fileno()

    def quiet(self) -> None:
        """No echo, no line buffering; Ctrl-C works as before."""
        if sys.platform == "win32" or self._fd is None:
            return
        with contextlib.suppress(termios.error):
            self._before = termios.tcgetattr(self._fd)
            changed = list(self._before)
            changed[3] &= ~(termios.ECHO | termios.ICANON)
            termios.tcsetattr(self._fd, termios.TCSANOW, changed)

    def loud(self) -> None:
        """Restore the terminal and discard keys typed meanwhile."""
        if sys.platform == "win32" or self._fd is None or self._before is None:
            return
        with contextlib.suppress(termios.error):
            termios.tcflush(self._fd, termios.TCIFLUSH)
            termios.tcsetattr(self._fd, termios.TCSANOW, self._before)  # draining would wait for a reader

    def typed(self) -> bytes:
        """Keys typed since the last call."""
        if sys.platform == "win32" or self._fd is None:
            return b""
        try:
            if not select.select([self._fd], [], [], 0)[0]:
                return b""
            keys = os.read(self._fd, 1024)
        except OSError:
            keys = b""
        if not keys:  # the terminal was closed
            self._fd = None
        return keys


class _Unpadded:
    """Standard output without the spaces that pad a table's lines."""

    @property
    def encoding(self) -> str:
        return sys.stdout.encoding

    def write(self, text: str) -> int:
        return sys.stdout.write(_PADDING.sub("", text))

    def flush(self) -> None:
        sys.stdout.flush()

    def isatty(self) -> bool:
        return False


def new_console() -> Console:
    """A console for standard output; a pipe is wide enough that nothing is cut or wrapped, and gets no padding."""
    if sys.stdout.isatty():
        return Console()
    return Console(width=PIPE_WIDTH, file=cast(TextIO, _Unpadded()))


def print_json(value: Any) -> None:
    """Print JSON values, which may contain pydantic models, on standard output."""

    from pydantic_core import to_json

    sys.stdout.write(to_json(value, indent=2, inf_nan_mode="constants").decode() + "\n")


def print_json_with(
    before: Mapping[str, Any], name: str, values: Iterable[Any], after: Mapping[str, Any]
) -> None:
    """Print one JSON object on standard output as `print_json` would, writing the `values` of its list `name` one by one."""
    from pydantic_core import to_json

    def text(value: Any) -> str:
        return to_json(value, indent=2, inf_nan_mode="constants").decode()

    def entries(fields: Mapping[str, Any]) -> list[str]:
        return [f"{text(key)}: {text(value)}".replace("\n", "\n  ") for key, value in fields.items()]

    sys.stdout.write("{\n  " + "".join(f"{entry},\n  " for entry in entries(before)) + f"{text(name)}: [")
    comma = ""
    for value in values:
        sys.stdout.write(f"{comma}\n    " + text(value).replace("\n", "\n    "))
        comma = ","
    sys.stdout.write(
        ("\n  ]" if comma else "]") + "".join(f",\n  {entry}" for entry in entries(after)) + "\n}\n"
    )
