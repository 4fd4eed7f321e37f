"""The token that a server wants beyond loopback: made once, kept in a file of its owner's alone."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import sys
from pathlib import Path
from typing import Final

from protocol.errors import CampaignError, ResourceError
from swarm.base.durable import write_durably

SHORTEST: Final = 16
LONGEST: Final = 1000


def own_token(path: Path) -> str:
    """This home's own, made where there is none; of servers that make one at once all take the same. Raises as `read_token`, and
    `ResourceError` where others can read it."""
    if not path.exists():
        _make(path)
    try:
        mode = path.stat().st_mode
    except OSError as exc:
        raise _unreadable(path, exc) from None
    if sys.platform != "win32" and stat.S_IMODE(mode) & 0o077:
        raise ResourceError(
            f"{path} can be read by other users",
            hint=f"remove it, and a new one is made; or: chmod 600 {path}",
        )
    return read_token(path)


def read_token(path: Path) -> str:
    """The one in this file. Raises `ResourceError` when it cannot be read, `CampaignError` when it is none."""
    try:
        with path.open("rb") as file:
            token = file.read(LONGEST + 1).decode("ascii", "replace").strip()
    except OSError as exc:
        raise _unreadable(path, exc) from None
    good = token.isascii() and token.isprintable() and " " not in token
    if not good or not SHORTEST <= len(token) <= LONGEST:
        raise CampaignError(
            f"{path}: a token has {SHORTEST} letters or more and no spaces",
            hint="make one: openssl rand -hex 32",
        )
    return token


def _make(path: Path) -> None:
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    write_durably(fresh, f"{secrets.token_urlsafe(32)}\n".encode())
    try:
        with contextlib.suppress(FileExistsError):  # another server was quicker: its token is everybody's
            os.link(fresh, path)
    except OSError:  # a file system without links
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def _unreadable(path: Path, error: OSError) -> ResourceError:
    return ResourceError(f"cannot read {path}: {error.strerror}", hint="name a file with the token in it")
