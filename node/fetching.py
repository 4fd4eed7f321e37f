"""Where a run's model comes from when it is not in the cache: the scheduler that speaks for the run, over the connection it made.

Where that has none, or cannot be reached: the URL that the task names, if it names one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
import trio

from node.cache import Progress, Source
from node.url_source import url_source, with_url
from protocol.errors import Unreachable
from protocol.task import Task
from swarm.blobs import fetch_blob
from swarm.downloading import EDGE, Edge
from swarm.network import Network, PeerId

FETCH_AGAIN_S: Final = 1.0

log = structlog.get_logger("sark.worker")


def task_source(
    network: Network, task: Task, speaker: Callable[[], PeerId], *, owner: bool, edge: Edge = EDGE
) -> Source:
    """All there is for a task's model. `owner`: the task is the device's owner's, whose URLs may lead anywhere."""
    if task.model_url is None:
        return model_source(network, task, speaker)
    spoken = model_source(network, task, speaker, again=False)
    return with_url(spoken, url_source(task.model_url, task.model, owner=owner, edge=edge))


def model_source(
    network: Network, task: Task, speaker: Callable[[], PeerId], *, again: bool = True
) -> Source:
    """The task's model from who speaks for it at that moment. `again`: tried until the fetch's time is over, where it cannot be reached."""

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
                if not again:
                    raise
                await trio.sleep(FETCH_AGAIN_S)
            else:
                return

    return fetch
