"""The files of pools below a home: where they are, and how to read one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, Final, TypeVar

from protocol.errors import RemoteProtocolError, ResourceError
from protocol.wire.base import Message
from protocol.wire.codec import read_value
from swarm.base.durable import UNFINISHED
from swarm.base.home import Home

MAX_FILE: Final = 256 * 1024
MAX_FILE_ELEMENTS: Final = 262_144
JOINED: Final = "joined"
"""The folder of joined pools; each pool made here has a folder of its own next to it."""
MAX_SECRET: Final = 96 * 1024
MAX_PATH: Final = 1024
_SECRETS: Final = ("sark",)
"""How tickets and tokens begin."""
_FILE_LIKE: Final = frozenset("./\\")
"""Characters that no ticket or token has: the text means a file."""
LOCK_WAIT_S: Final = 2.0
"""How long a change waits for another process of the home, which holds its lock for a few milliseconds."""

M = TypeVar("M", bound=Message)
T = TypeVar("T")
Damaged = Callable[[ResourceError], object]
"""Called for each file that cannot be read."""


def pools_folder(home: Home) -> Path:
    """The folder of a home's pools."""
    return home.data / "pools"


def read_file(path: Path, shape: type[M]) -> M:
    """Parse a file of ours. Raises `ResourceError` naming it."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise damaged(path)
        return read_value(shape, path.read_bytes(), max_bytes=MAX_FILE, max_elements=MAX_FILE_ELEMENTS)
    except OSError as error:
        raise unreadable(path, error) from error
    except RemoteProtocolError as error:
        raise damaged(path) from error


def read_each(
    folder: Path, wanted: Callable[[Path], bool], read: Callable[[Path], T], damaged: Damaged | None = None
) -> tuple[T, ...]:
    """Read the wanted entries of a folder, which may be missing. Those that cannot be read go to `damaged`; without it the first one
    raises `ResourceError`."""
    values: list[T] = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if UNFINISHED.fullmatch(path.name) or not wanted(path):
            continue
        try:
            values.append(read(path))
        except ResourceError as exc:
            if damaged is None:
                raise
            damaged(exc)
    return tuple(values)


def secret_text(text: str, stdin: IO[str]) -> str:
    """A ticket or token from the command line: the string itself, `-` for the first line of standard input, or the path of a file.

    Every user of the machine can read what is typed on a command line. Raises `ResourceError` for a missing or unreadable file, and
    for empty standard input.
    """
    text = text.strip()
    if text == "-":
        typed = stdin.readline(MAX_SECRET)
        if not typed.strip():
            raise ResourceError(
                "standard input is empty", hint="paste it and press Enter, or name a file that holds it"
            )
        return typed
    if text.startswith(_SECRETS) or len(text) > MAX_PATH:
        return text
    path = Path(text)
    try:
        if not path.is_file():
            if _FILE_LIKE & set(text):
                what = "is a folder" if path.is_dir() else "does not exist"
                raise ResourceError(
                    f"the file {text} {what}", hint="name the file that holds it, or paste it"
                )
            return text
        with path.open(encoding="ascii", errors="replace") as file:
            return file.read(MAX_SECRET)
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError:  # a character that no path can have
        return text


def unreadable(path: Path, error: OSError) -> ResourceError:
    """The error for a file that cannot be read."""
    return ResourceError(
        f"cannot read {path}: {error.strerror or error}", hint="check its permissions, or restore it"
    )


def damaged(path: Path) -> ResourceError:
    """The error for a file that cannot be parsed."""
    return ResourceError(f"{path} is damaged", hint="restore it from a copy, or move it away and join again")
