"""A model that no device has, from the URL that its tasks name: for who carries a campaign on that somebody else submitted."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

import structlog
import trio

from protocol.errors import Refused, Unreachable
from protocol.values.task import Model
from swarm.download.download import EDGE, Edge, download
from swarm.download.urls import FOR_OTHERS

LONGEST_S: Final = 3600.0

log = structlog.get_logger("sark.adopt")


async def bring_by_url(url: str, model: Model, target: Path, edge: Edge = EDGE) -> bool:
    """`model` from `url` to `target`, its hash checked; False where it is not to be had. Others wrote the URL: it leads to the internet.

    Raises `OSError` when it cannot be written.
    """
    fresh = target.with_name(f".{target.name}.by-url")
    digest = hashlib.sha256()
    try:
        with fresh.open("wb") as file:

            def store(data: bytearray) -> None:
                digest.update(data)
                file.write(data)

            with trio.move_on_after(LONGEST_S):
                await download(url, FOR_OTHERS, sink=store, size=model.size, edge=edge)
            if digest.hexdigest() != model.sha256:
                log.warning("model.url_changed", model=model.name)
                return False
            file.flush()
            await trio.to_thread.run_sync(os.fsync, file.fileno())
        fresh.replace(target)
        return True
    except (Unreachable, Refused) as exc:
        log.info("model.not_by_url", model=model.name, why=exc.what)
        return False
    finally:
        fresh.unlink(missing_ok=True)
