"""The sources of a model that is not in the cache: the scheduler that speaks for the run, the workers that it names, and the task's URL.

For the device's owner, the URL is used in parallel with the peers. For all others it is used only if the peers do not have the model or
are unreachable: pieces fetched for a principal count as that principal's and are shared with its other workers, but a URL proves no right
to them. For the device's owner a URL may lead anywhere that the device reaches, for all others to the public internet by https
(`swarm/download/urls.py`). The content counts only if it has the task's hash. If the URL now has another file, the error says so.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog
import trio

from node.store.cache import Progress, Source
from node.store.partial import PartialFile
from protocol.errors import Refused, Unreachable
from protocol.values.task import Model
from swarm.base.threads import DISK
from swarm.blobs.swarm_download import DownloadRequest, Mirror, pull
from swarm.download.urls import without_secrets
from swarm.net.addresses import PeerId
from swarm.net.network import Network

if TYPE_CHECKING:
    from swarm.download.download import Edge

RETRY_S: Final = 2.0

log = structlog.get_logger("sark.urls")


def task_source(
    network: Network,
    model: Model,
    url: str | None,
    speaker: Callable[[], PeerId],
    *,
    principal: str,
    owner: bool,
    rng: random.Random,
    edge: Edge | None = None,
) -> Source:
    """All sources for a model in a task of `principal`. `url`: the model's URL, if the task names one. `owner`: the task is the device
    owner's, whose URLs may lead anywhere.
    """
    if url is None:
        return model_source(network, model, speaker, principal=principal, rng=rng)
    from node.run.url_source import (  # an HTTP client, which a worker without URLs does not need
        url_pieces,
        url_source,
    )

    mirror = url_pieces(url, model, owner=True, edge=edge) if owner else None
    spoken = model_source(
        network, model, speaker, principal=principal, rng=rng, retry_leader=False, mirror=mirror
    )
    by_url = url_source(url, model, owner=owner, edge=edge)
    return with_url(spoken, by_url, without_secrets(url))


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
    """The source of `model` among peers, for a task of `principal`. `speaker`: returns the scheduler that speaks for the run now. Other
    workers of `principal` can fetch the pieces that have arrived.

    `retry_leader`: if no peer can be reached, retry until the time for the fetch is over.
    """

    def relayed(peer: PeerId) -> bool:
        path = network.path(peer)
        return path is not None and not path.direct

    async def fetch(offset: int, target: PartialFile, progress: Progress) -> None:
        await DISK.run(target.begin, principal)
        target.origin = f"scheduler …{principal[-8:]}"
        request = DownloadRequest(model.sha256, model.size, speaker, relayed, retry_leader, mirror)
        await pull(network, target, request, rng=rng, progress=progress)

    return fetch


def with_url(first: Source, url: Source, origin: str = "a URL") -> Source:
    """Alternates between `first`, which gives up at once, and `url`, until one of them has fetched the rest. A source that refuses is not
    asked again; the last refusal is raised. `origin`: words for the URL, shown to the device's owner if the last bytes came from it.
    """

    async def fetch(offset: int, target: PartialFile, progress: Progress) -> None:
        left = [first, url]
        while True:
            for source in tuple(left):
                try:
                    await source(target.offset, target, progress)
                except Unreachable as exc:
                    log.info("source.unreachable", at=target.offset, why=exc.what)
                except Refused as exc:
                    left.remove(source)
                    if not left:
                        raise
                    log.info("source.has_none", why=exc.what)
                else:
                    if source is url:
                        target.origin = origin
                    return
            await trio.sleep(RETRY_S)

    return fetch
