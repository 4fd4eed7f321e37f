"""The spool: copies of the models of unfinished campaigns, named by their sha256, from which workers fetch them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Final

from protocol.errors import CampaignError, ResourceError
from protocol.formats.reference_model import reference_model, reference_sha256
from protocol.values.task import Model
from swarm.base.durable import make_folder, replacing, sync_folder, write_durably
from swarm.base.threads import DISK
from swarm.blobs.bundles import contents
from swarm.download.response import FileChanged

KEEP_S: Final = 3600.0
"""Seconds for which a copy counts as young: it may belong to a campaign that is just being submitted."""


def spool(source: Path | bytes, model: Model, folder: Path) -> Path:
    """A copy of the model under its hash, so that the user's file may change or go while the campaign runs. `source`: a file, or the
    content of one.

    Raises `CampaignError` when the file is no longer the one described, `ResourceError` when it cannot be copied.
    """
    target = folder / model.sha256
    with contextlib.suppress(OSError):
        if is_spooled(model, folder):
            os.utime(target)  # counts as young again: see `tidy`
            return target
    shown = model.name if isinstance(source, bytes) else str(source)
    digest = hashlib.sha256()
    try:
        make_folder(folder, mode=0o777)
        with replacing(target) as writer:
            for piece in [source] if isinstance(source, bytes) else contents(source):
                digest.update(piece)
                writer.write(piece)
            if digest.hexdigest() != model.sha256:
                raise CampaignError(
                    f"{shown} changed while it was read", hint="submit again when it is complete"
                )
    except ValueError as exc:
        raise CampaignError(f"{shown}: {exc}", hint="submit again when it is complete") from None
    except OSError as exc:
        raise ResourceError(
            f"cannot copy {shown} to {folder}: {exc.strerror}",
            hint=f"{model.size:,} bytes are needed there",
        ) from None
    return target


def spool_reference(folder: Path) -> None:
    """Put the reference model into the spool. Raises `ResourceError`."""
    data, sha256 = reference_model(), reference_sha256()
    try:
        make_folder(folder, mode=0o777)
        write_durably(folder / sha256, data)
    except OSError as exc:
        raise ResourceError(
            f"cannot write to {folder}: {exc.strerror or exc}", hint=f"{len(data):,} bytes are needed there"
        ) from None


def is_spooled(model: Model, folder: Path) -> bool:
    """Whether the spool has a copy of the model."""
    target = folder / model.sha256
    return target.is_file() and target.stat().st_size == model.size


async def receive(
    model: Model, folder: Path, fetch: Callable[[Callable[[bytearray], object]], Awaitable[None]]
) -> None:
    """Put the data that `fetch` writes to its sink into the spool, if it is the model. Raises `FileChanged` if it is not, and
    `ResourceError`.
    """
    digest = hashlib.sha256()
    try:
        with replacing(folder / model.sha256, durable=False) as file:

            def sink(data: bytearray) -> None:
                digest.update(data)
                file.write(data)

            await fetch(sink)
            if digest.hexdigest() != model.sha256:
                raise FileChanged("its content has another hash")
            file.flush()
            await DISK.run(os.fsync, file.fileno())
        await DISK.run(sync_folder, folder)
    except OSError as exc:
        raise ResourceError(
            f"cannot write a model to {folder}: {exc.strerror or exc}",
            hint="free some space there, or check the folder's permissions; then adopt again",
        ) from None


def tidy(folder: Path, needed: Collection[str], *, wall: Callable[[], float] = time.time) -> int:
    """Remove the copies that no unfinished campaign needs; returns how many. A copy that cannot be removed stays until the next time."""
    removed = 0
    for path in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            if path.name not in needed and wall() - path.stat().st_mtime > KEEP_S:
                path.unlink()
                removed += 1
    return removed
