"""The files of pools below a home: where they are, how to read one, and a lock for changes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, TypeVar

from protocol.errors import RemoteProtocolError, ResourceError
from protocol.wire.base import Message
from protocol.wire.codec import read_value
from swarm.base.home import Home
from swarm.base.locks import lock_folder

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
LOCK_TRIES: Final = 200
LOCK_TRY_S: Final = 0.01

M = TypeVar("M", bound=Message)


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


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder for the few milliseconds of a change. Raises `ResourceError` after two seconds of waiting."""
    for left in reversed(range(LOCK_TRIES)):
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(lock_folder(folder))
            except ResourceError:
                if not left:
                    raise
            else:
                yield
                return
        time.sleep(LOCK_TRY_S)


def unreadable(path: Path, error: OSError) -> ResourceError:
    """The error for a file that cannot be read."""
    return ResourceError(
        f"cannot read {path}: {error.strerror or error}", hint="check its permissions, or restore it"
    )


def damaged(path: Path) -> ResourceError:
    """The error for a file that cannot be parsed."""
    return ResourceError(f"{path} is damaged", hint="restore it from a copy, or move it away and join again")
