"""The log files of a home: JSON lines of each long-running process, rotated; and how they are read back.

A line that cannot be written is dropped: a full disk stops no worker.
"""

from __future__ import annotations

import heapq
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final

SUFFIX: Final = ".jsonl"
MAX_BYTES: Final = 5 * 1024 * 1024
MAX_FILES: Final = 5
"""Older files kept for each process."""
POLL_S: Final = 0.5
_MAX_LINE: Final = 1024 * 1024


class LogFile(RotatingFileHandler):
    """Writes to `path` from the first line on, and starts a new file at `MAX_BYTES`. Only the user can read the files."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=MAX_BYTES, backupCount=MAX_FILES, encoding="utf-8", delay=True)

    def _open(self) -> Any:
        Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        return os.fdopen(os.open(self.baseFilename, flags, 0o600), "a", encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (logging's name)
        """Do nothing: see above."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log file."""

    at: str
    """ISO 8601 in UTC, as in the file; sorts by time."""
    role: str
    """The role that wrote the line, such as `worker`."""
    level: str
    event: str
    fields: tuple[tuple[str, Any], ...]
    """The other fields, in order."""

    def local(self) -> str:
        """The time in this machine's time zone: `2026-11-23 05:12:07`."""
        try:
            return datetime.fromisoformat(self.at).replace(tzinfo=UTC).astimezone().strftime("%F %T")
        except ValueError:
            return self.at


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Which lines to show."""

    level: int = logging.INFO
    """This level and higher ones."""
    roles: frozenset[str] = frozenset()
    """Empty: all."""
    about: tuple[str, ...] = ()
    """Ids of tasks or campaigns, all of which the line must name; a task's id also names its campaign."""

    def wants(self, line: LogLine) -> bool:
        if self.roles and line.role not in self.roles:
            return False
        if logging.getLevelNamesMapping().get(line.level.upper(), logging.INFO) < self.level:
            return False
        return all(any(_names(value, one) for _, value in line.fields) for one in self.about)


def _names(value: object, wanted: str) -> bool:
    if isinstance(value, Mapping):
        return any(_names(one, wanted) for pair in value.items() for one in pair)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return any(_names(one, wanted) for one in value)
    return isinstance(value, str) and (value == wanted or value.startswith(f"{wanted}/"))


def read_line(text: str, role: str) -> LogLine | None:
    """A line of a file. None: it is cut off, or not a Sark log line."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    at, level, event = (str(value.pop(name, "")) for name in ("timestamp", "level", "event"))
    return LogLine(at, role, level, event, tuple(value.items())) if event else None


def files_of(folder: Path) -> dict[str, tuple[Path, ...]]:
    """The log files of a home by role, oldest first."""
    roles = sorted(path.name.removesuffix(SUFFIX) for path in folder.glob(f"*{SUFFIX}"))
    return {
        role: tuple(
            path
            for number in range(MAX_FILES, -1, -1)
            if (path := folder / (f"{role}{SUFFIX}" + (f".{number}" if number else ""))).is_file()
        )
        for role in roles
    }


def stored_lines(folder: Path, wanted: LogFilter) -> Iterator[LogLine]:
    """All wanted lines, oldest first. Blocking; uses memory for one line of each role."""
    files = files_of(folder).items()
    return heapq.merge(*(_lines(paths, role, wanted) for role, paths in files), key=lambda line: line.at)


def _lines(paths: Iterable[Path], role: str, wanted: LogFilter) -> Iterator[LogLine]:
    for path in paths:
        try:
            source = path.open(encoding="utf-8", errors="replace")
        except OSError:  # the file was rotated away
            continue
        with source:
            while text := source.readline(_MAX_LINE):
                line = read_line(text, role)
                if line is not None and wanted.wants(line):
                    yield line


def new_lines(
    folder: Path, wanted: LogFilter, pause: Callable[[float], None] = time.sleep
) -> Iterator[LogLine]:
    """The lines written from now on, without end. Blocking."""
    ends = {role: _end(paths[-1]) for role, paths in files_of(folder).items() if paths}
    while True:
        found: list[LogLine] = []
        for role, paths in files_of(folder).items():
            if not paths:
                continue
            inode, offset = ends.get(role, (None, 0))
            rotated = [path for path in paths[-2:-1] if inode is not None and _end(path)[0] == inode]
            for path in (*rotated, paths[-1]):
                start = offset if _end(path)[0] == inode else 0
                lines, end = _after(path, start, role)
                found += filter(wanted.wants, lines)
                ends[role] = (_end(path)[0], end)
        yield from sorted(found, key=lambda line: line.at)
        pause(POLL_S)


def _end(path: Path) -> tuple[int | None, int]:
    """An id that tells the file from a later one with its name, and its size."""
    try:
        found = path.stat()
    except OSError:
        return None, 0
    return found.st_ino, found.st_size


def _after(path: Path, start: int, role: str) -> tuple[list[LogLine], int]:
    """The complete lines from `start` on, and where the next line begins."""
    try:
        with path.open("rb") as source:
            source.seek(start)
            data = source.read()
    except OSError:
        return [], start
    whole = data[: data.rfind(b"\n") + 1]
    texts = whole.decode("utf-8", "replace").splitlines()
    return [line for text in texts if (line := read_line(text, role)) is not None], start + len(whole)
