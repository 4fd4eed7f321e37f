"""A live view: the terminal always shows the last picture, and only changes are written."""

from __future__ import annotations

import contextlib
import io
import os
import random
import re

import pytest
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from swarm.base.screen import (
    ENTER,
    LEAVE,
    Screen,
    can_live,
    changes,
    new_console,
    print_json,
    print_json_with,
)

_STEP = re.compile(r"\x1b\[(\d+);1H|\x1b\[([KJ])|\x1b\[[?\d;]*[a-zA-Z]|([^\x1b]+)")


class Glass:
    """The part of a terminal that is needed here: single-width letters, the cursor, erasing."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.lines = ["#" * columns] * rows
        self.written = 0

    def feed(self, output: str) -> None:
        self.written += len(output.encode())
        row, column = 0, 0
        for at, erase, text in _STEP.findall(output):
            if at:
                row, column = int(at) - 1, 0
                assert row < self.rows, "nothing scrolls"
            elif erase:
                self.lines[row] = self.lines[row][:column].ljust(self.columns)
                if erase == "J":
                    self.lines[row + 1 :] = [" " * self.columns] * (self.rows - row - 1)
            elif text:
                assert "\n" not in text
                assert column + len(text) <= self.columns, "nothing wraps"
                line = self.lines[row]
                self.lines[row] = line[:column] + text + line[column + len(text) :]
                column += len(text)

    def shown(self) -> list[str]:
        return [line.rstrip() for line in self.lines]


def a_screen(width: int = 40, height: int = 6) -> tuple[Screen, io.StringIO, Console]:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=True, color_system="standard")
    return Screen(console, io.StringIO(), clock=lambda: 0.0), out, console


def drained(out: io.StringIO) -> str:
    text = out.getvalue()
    out.seek(0)
    out.truncate()
    return text


def test_whatever_was_there_the_terminal_shows_the_last_picture() -> None:
    rng = random.Random(7)
    glass, before = Glass(12, 5), None
    for _ in range(300):
        after = ["x" * rng.choice((0, 3, 11, 12)) for _ in range(rng.randint(1, 5))]
        after = [line.replace("x", rng.choice("abc")) for line in after]
        glass.feed(changes(before, after, (12, 5)))
        assert glass.shown() == after + [""] * (5 - len(after))
        before = after if rng.random() < 0.9 else None


def test_a_picture_that_has_not_changed_writes_nothing() -> None:
    screen, out, _ = a_screen()
    with screen:
        screen.show(Text("one\ntwo"))
        drained(out)
        screen.show(Text("one\ntwo"))
        assert drained(out) == ""
        screen.show(Text("one\nthree"))
        line = drained(out)
        assert "three" in line
        assert "one" not in line
        assert len(line) < 40
        assert "\x1b[2J" not in line, "what is erased before it is written flickers"


def test_another_size_has_all_of_it_drawn_again() -> None:
    screen, out, console = a_screen(40, 6)
    with screen:
        screen.show(Group(*map(str, range(6))))
        drained(out)
        console.size = console.size._replace(width=30, height=4)
        screen.show(Group(*map(str, range(4))))
        glass = Glass(30, 4)
        glass.feed(drained(out))
        assert glass.shown() == ["0", "1", "2", "3"]


def test_after_a_while_it_is_written_again_for_others_may_have_written_over_it() -> None:
    now, out = [0.0], io.StringIO()
    console = Console(file=out, width=40, height=6, force_terminal=True)
    with Screen(console, io.StringIO(), clock=lambda: now[0]) as screen:
        screen.show("steady")
        drained(out)
        now[0] = 9.0
        screen.show("steady")
        assert drained(out) == ""
        now[0] = 10.5
        screen.show("steady")
        assert "steady" in drained(out)


def test_lines_that_do_not_fit_are_counted() -> None:
    screen, out, _ = a_screen(40, 4)
    with screen:
        drained(out)
        screen.show(Group(*map(str, range(10))))
        glass = Glass(40, 4)
        glass.feed(drained(out))
        assert glass.shown() == ["0", "1", "2", "… 7 more lines"]


@pytest.mark.parametrize("how", [None, KeyboardInterrupt, ValueError], ids=["end", "ctrl-c", "mistake"])
def test_the_terminal_is_given_back_however_it_ends(how: type[BaseException] | None) -> None:
    screen, out, _ = a_screen()

    def live() -> None:
        with screen:
            screen.show("x")
            if how is not None:
                raise how

    with contextlib.nullcontext() if how is None else pytest.raises(how):
        live()
    text = drained(out)
    assert text.startswith(ENTER)
    assert text.endswith(LEAVE)
    for on, off in (("\x1b[?1049h", "\x1b[?1049l"), ("\x1b[?25l", "\x1b[?25h"), ("\x1b[?7l", "\x1b[?7h")):
        assert text.count(on) == text.count(off) == 1


class Slow(io.StringIO):
    """A terminal that is receiving a picture when a signal arrives: meanwhile Python lets no handler write to its file."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd, self.taking = fd, False

    def fileno(self) -> int:
        return self._fd

    def write(self, text: str) -> int:
        if self.taking:
            raise RuntimeError("reentrant call inside <_io.BufferedWriter name=1>")
        return super().write(text)


def test_a_signal_in_the_middle_of_a_picture_gives_a_slow_terminal_back() -> None:
    reading, writing = os.pipe()
    out = Slow(writing)
    with Screen(Console(file=out, width=40, height=6, force_terminal=True), io.StringIO()) as screen:
        screen.show("one")
        out.taking = True
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as opened:
        assert opened.read() == LEAVE


@pytest.mark.parametrize(
    ("setting", "live"),
    [({}, False), ({"TERM": "dumb"}, False), ({"FORCE_COLOR": "1"}, False), ({"NO_COLOR": "1"}, False)],
    ids=str,
)
def test_a_pipe_is_no_place_for_it_whatever_the_environment_says(setting: dict[str, str], live: bool) -> None:
    assert can_live(Console(file=io.StringIO(), _environ=setting)) is live


@pytest.mark.parametrize("values", [[], [{"a": 1, "text": "two\nlines"}], [[1, 2], {}, None]])
@pytest.mark.parametrize("after", [{}, {"csv": "c", "more": {"x": [1]}}])
def test_a_list_that_is_printed_one_by_one_is_the_same_json(
    capsys: pytest.CaptureFixture[str], values: list[object], after: dict[str, object]
) -> None:
    print_json({"campaign": "c", "results": values, **after})
    whole = capsys.readouterr().out
    print_json_with({"campaign": "c"}, "results", iter(values), after)
    assert capsys.readouterr().out == whole


def test_a_table_in_a_pipe_is_not_padded(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Table("name", "state", box=None)
    lines.add_row("a long name", "up")
    lines.add_row("b", "")
    new_console().print(lines)
    assert [line.lstrip() for line in capsys.readouterr().out.split("\n")] == [
        "name         state",
        "a long name  up",
        "b",
        "",
    ]
