"""Where a run's model comes from when it is not in the cache: the scheduler that speaks for the run, over the connection it made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
import trio

from node.cache import Progress, Source
from protocol.errors import Unreachable
from protocol.task import Task
from swarm.blobs import fetch_blob
from swarm.network import Network, PeerId

FETCH_AGAIN_S: Final = 1.0

log = structlog.get_logger("sark.worker")


def model_source(network: Network, task: Task, speaker: Callable[[], PeerId]) -> Source:
    """The task's model from who speaks for it at that moment. Tried again until the fetch's time is over."""

    async def fetch(offset: int, sink: Callable[[bytearray], object], progress: Progress) -> None:
        got = offset

        def store(data: bytearray) -> None:
            nonlocal got
            sink(data)
            got += len(data)

        while True:
            try:
                await fetch_blob(
                    network,
                    speaker(),
                    (),
                    task.model.sha256,
                    offset=got,
                    sink=store,
                    size=task.model.size,
                    progress=progress,
                )
            except Unreachable as exc:
                log.info("fetch.interrupted", model=task.model.name, at=got, why=exc.what)
                await trio.sleep(FETCH_AGAIN_S)
            else:
                return

    return fetch
