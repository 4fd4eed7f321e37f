"""The files of pools below a home: where they lie, how they are read, how one process at a time changes them."""

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
"""The folder of the joined ones, beside a folder for each pool that was made here."""
MAX_SECRET: Final = 32 * 1024
MAX_PATH: Final = 1024
_SECRETS: Final = ("sark",)
"""How tickets and tokens begin."""
_FILE_LIKE: Final = frozenset("./\\")
"""In no ticket and no token, so it was meant as a file."""
LOCK_TRIES: Final = 200
LOCK_TRY_S: Final = 0.01

M = TypeVar("M", bound=Message)


def pools_folder(home: Home) -> Path:
    """All that a home knows of pools."""
    return home.data / "pools"


def read_file(path: Path, shape: type[M]) -> M:
    """What is in a file of ours. Raises `ResourceError` naming it."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise damaged(path)
        return read_value(shape, path.read_bytes(), max_bytes=MAX_FILE, max_elements=MAX_FILE_ELEMENTS)
    except OSError as error:
        raise unreadable(path, error) from error
    except RemoteProtocolError as error:
        raise damaged(path) from error


def secret_text(said: str, stdin: IO[str]) -> str:
    """A ticket or token as it was typed: itself, `-` for the first line of standard input, or the path of a file that holds it.

    What is typed on a command line can be read by every user of the machine. Raises `ResourceError` for a file that cannot be read, or
    is not there, and where nothing came on standard input.
    """
    said = said.strip()
    if said == "-":
        text = stdin.readline(MAX_SECRET)
        if not text.strip():
            raise ResourceError(
                "nothing came on standard input",
                hint="paste it and press Enter, or name a file that holds it",
            )
        return text
    if said.startswith(_SECRETS) or len(said) > MAX_PATH:
        return said
    path = Path(said)
    try:
        if not path.is_file():
            if _FILE_LIKE & set(said):
                what = "is a folder" if path.is_dir() else "is not there"
                raise ResourceError(
                    f"the file {said} {what}", hint="name the file that holds it, or paste it"
                )
            return said
        with path.open(encoding="ascii", errors="replace") as file:
            return file.read(MAX_SECRET)
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError:  # it has a character that no path can have
        return said


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Alone in a folder for the few milliseconds that a change takes. Raises `ResourceError` after two seconds of waiting."""
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
    """To be raised for a file that cannot be had."""
    return ResourceError(
        f"cannot read {path}: {error.strerror or error}", hint="mend its rights, or restore it"
    )


def damaged(path: Path) -> ResourceError:
    """To be raised for a file that makes no sense."""
    return ResourceError(f"{path} is damaged", hint="restore it from a copy, or move it away and join again")
