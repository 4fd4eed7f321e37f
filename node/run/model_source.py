"""Where a run's model comes from when it is not in the cache: the scheduler that speaks for the run and the workers that it names, and
the URL that the task names, if it names one: for the device's owner side by side with them, else where those have none or cannot be
reached. For what is brought for somebody in pieces counts as theirs, and others of theirs are given it: a URL shows no such thing.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import trio

from node.run.url_source import url_pieces, url_source, with_url
from node.store.cache import Progress, Source
from node.store.partial import PartialFile
from protocol.values.task import Model, Task
from swarm.blobs.swarm_download import DownloadRequest, Mirror, pull
from swarm.download.download import EDGE, Edge
from swarm.download.urls import without_secrets
from swarm.net.addresses import PeerId
from swarm.net.network import Network


def task_source(
    network: Network,
    task: Task,
    speaker: Callable[[], PeerId],
    *,
    principal: str,
    owner: bool,
    rng: random.Random,
    edge: Edge = EDGE,
) -> Source:
    """All there is for the model of a task of `principal`. `owner`: that is the device's owner, whose URLs may lead anywhere."""
    if task.model_url is None:
        return model_source(network, task.model, speaker, principal=principal, rng=rng)
    mirror = url_pieces(task.model_url, task.model, owner=True, edge=edge) if owner else None
    spoken = model_source(
        network, task.model, speaker, principal=principal, rng=rng, retry_leader=False, mirror=mirror
    )
    by_url = url_source(task.model_url, task.model, owner=owner, edge=edge)
    return with_url(spoken, by_url, without_secrets(task.model_url))


def model_source(
    network: Network,
    model: Model,
    speaker: Callable[[], PeerId],
    *,
    principal: str,
    rng: random.Random,
    retry_leader: bool = True,
    mirror: Mirror | None = None,
) -> Source:
    """`model` for a task of `principal`, for whom `speaker` speaks at that moment: as far as it is here, others of theirs can have it too.

    `retry_leader`: while nobody can be reached, retry until the fetch's time is over.
    """

    def relayed(peer: PeerId) -> bool:
        path = network.path(peer)
        return path is not None and not path.direct

    async def fetch(offset: int, target: PartialFile, progress: Progress) -> None:
        await trio.to_thread.run_sync(target.begin, principal)
        target.origin = f"scheduler …{principal[-8:]}"
        request = DownloadRequest(model.sha256, model.size, speaker, relayed, retry_leader, mirror)
        await pull(network, target, request, rng=rng, progress=progress)

    return fetch
