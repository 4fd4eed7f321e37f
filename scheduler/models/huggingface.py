"""Files at Hugging Face by `huggingface_hub`, an extra: its cache, its token for repositories that are not public, its own progress."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol, cast

from protocol.errors import Refused
from protocol.words import Reason
from swarm.download.urls import HfFile

Hub = Callable[[HfFile], Path]
"""Brings a file; gives where it is. Raises `Refused`."""
INSTALL: Final = "python -m pip install 'sark-node[hf]', or give the https: URL of the file"


class HubLibrary(Protocol):
    """What is used of `huggingface_hub`."""

    def hf_hub_download(self, repo_id: str, filename: str, *, revision: str) -> str: ...


def installed() -> HubLibrary | None:
    """The library, if it is there. It takes half a second to load."""
    try:
        return cast("HubLibrary", import_module("huggingface_hub"))
    except ImportError:
        return None


def from_hub(file: HfFile, library: Callable[[], HubLibrary | None] = installed) -> Path:
    """The file, from its cache or the network. Blocking. Raises `Refused` with the first line of what the library says."""
    hub = library()
    if hub is None:
        raise Refused("hf:// needs the package huggingface_hub", reason=Reason.UNKNOWN, hint=INSTALL)
    try:
        return Path(hub.hf_hub_download(file.repo, file.file, revision=file.revision))
    except (OSError, ValueError, RuntimeError) as exc:  # its errors of network, rights and names are of these
        told = str(exc).strip() or type(exc).__name__
        raise Refused(
            f"{file.repo} at Hugging Face: {told.splitlines()[0][:300]}",
            reason=Reason.UNKNOWN,
            hint="check organisation, repository, file and revision; of one that is not public: hf auth login",
        ) from None
