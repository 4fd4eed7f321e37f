"""The API token: generated once for each home, in a file that only its owner can read."""

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

MIN_LENGTH: Final = 16
MAX_LENGTH: Final = 1000


def own_token(path: Path) -> str:
    """This home's token, generated if missing; servers that start at once agree on one. Raises like `read_token`, and `ResourceError`
    if other users can read the file."""
    if not path.exists():
        _generate(path)
    try:
        mode = path.stat().st_mode
    except OSError as exc:
        raise _unreadable(path, exc) from None
    if sys.platform != "win32" and stat.S_IMODE(mode) & 0o077:
        raise ResourceError(
            f"{path} is readable by other users",
            hint=f"remove the file to generate a new token, or run: chmod 600 {path}",
        )
    return read_token(path)


def read_token(path: Path) -> str:
    """The token in a file. Raises `ResourceError` if it cannot be read, `CampaignError` if it is not a token."""
    try:
        with path.open("rb") as file:
            token = file.read(MAX_LENGTH + 1).decode("ascii", "replace").strip()
    except OSError as exc:
        raise _unreadable(path, exc) from None
    valid = token.isascii() and token.isprintable() and " " not in token
    if not valid or not MIN_LENGTH <= len(token) <= MAX_LENGTH:
        raise CampaignError(
            f"{path}: a token has at least {MIN_LENGTH} characters and no spaces",
            hint="generate one: openssl rand -hex 32",
        )
    return token


def _generate(path: Path) -> None:
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    write_durably(fresh, f"{secrets.token_urlsafe(32)}\n".encode())
    try:
        with contextlib.suppress(FileExistsError):  # another server was faster: use its token
            os.link(fresh, path)
    except OSError:  # a file system without links
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def _unreadable(path: Path, error: OSError) -> ResourceError:
    return ResourceError(f"cannot read {path}: {error.strerror}", hint="name a file that contains the token")
