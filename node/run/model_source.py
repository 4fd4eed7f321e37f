"""Where a run's model comes from when it is not in the cache: the scheduler that speaks for the run and the workers that it names, and
the URL that the task names, if it names one: for the device's owner side by side with them, else where those have none or cannot be
reached. For what is brought for somebody in pieces counts as theirs, and others of theirs are given it: a URL shows no such thing.

For the device's owner a URL may lead anywhere the device reaches, for all others to the public internet by https
(`swarm/download/urls.py`). The content counts only with the task's hash; a URL that holds another file by now is an error that says so.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Final

import structlog
import trio

from node.store.cache import Progress, Source
from node.store.partial import PartialFile
from protocol.errors import Refused, RunError, Unreachable
from protocol.values.task import Model
from protocol.words import Reason
from swarm.base.threads import DISK
from swarm.blobs.swarm_download import DownloadRequest, Mirror, pull
from swarm.download.download import EDGE, Edge, download
from swarm.download.response import FileChanged, ResponseHead
from swarm.download.urls import FOR_OTHERS, FOR_OWNER, read_url, without_secrets
from swarm.net.addresses import PeerId
from swarm.net.network import Network

TRIES: Final = 3
"""In a row; then another source, if there is one, is next."""
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
    edge: Edge = EDGE,
) -> Source:
    """All there is for a model of a task of `principal`, which may name a `url` for it. `owner`: that is the device's owner, whose URLs
    may lead anywhere.
    """
    if url is None:
        return model_source(network, model, speaker, principal=principal, rng=rng)
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
    """`model` for a task of `principal`, for whom `speaker` speaks at that moment: as far as it is here, others of theirs can have it too.

    `retry_leader`: while nobody can be reached, retry until the fetch's time is over.
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


def url_source(url: str, model: Model, *, owner: bool, edge: Edge = EDGE) -> Source:
    """Brings `model` from `url`. `owner`: the task is the device's owner's.

    Raises `Refused` where the URL or a redirect is not followed, or there is no such file; `RunError` (wrong-hash) where it is not the
    file that the campaign means any more; `Unreachable` where it may do better later.
    """
    reach = FOR_OWNER if owner else FOR_OTHERS

    async def fetch(offset: int, sink: Callable[[bytearray], object], progress: Progress) -> None:
        address = read_url(url, reach)
        # of a resumed file only the cache has the beginning
        digest = hashlib.sha256() if offset == 0 else None
        done, tag = offset, ""

        def store(data: bytearray) -> None:
            nonlocal done
            sink(data)
            if digest is not None:
                digest.update(data)
            done += len(data)

        def on_head(head: ResponseHead) -> None:
            nonlocal tag
            tag = head.tag

        for last in (*(False,) * (TRIES - 1), True):
            try:
                await download(
                    url,
                    reach,
                    sink=store,
                    offset=done,
                    tag=tag,
                    size=model.size,
                    progress=progress,
                    on_head=on_head,
                    edge=edge,
                )
            except Unreachable as exc:
                log.info("url.interrupted", model=model.name, url=address.shown, at=done, why=exc.what)
                if last:
                    raise
                await trio.sleep(RETRY_S)
            except FileChanged as exc:
                raise _changed(model, exc.what) from None
            else:
                break
        if digest is not None and digest.hexdigest() != model.sha256:
            raise _changed(model, f"{address.shown} holds another file of the same size now")

    return fetch


def url_pieces(url: str, model: Model, *, owner: bool, edge: Edge = EDGE) -> Mirror:
    """The same in pieces, for a download from the swarm; what each must be is the caller's to know."""
    reach, tag = FOR_OWNER if owner else FOR_OTHERS, ""

    async def piece(offset: int, length: int) -> bytearray:
        nonlocal tag
        data = bytearray()
        head = await download(
            url,
            reach,
            sink=data.extend,
            offset=offset,
            end=offset + length,
            tag=tag,
            size=model.size,
            edge=edge,
        )
        tag = head.tag
        return data

    return Mirror(f"the URL of {model.name}", piece)


def _changed(model: Model, why: str) -> RunError:
    return RunError(
        f"{model.name}: the URL does not hold the campaign's file (any more): {why}",
        reason=Reason.WRONG_HASH,
        permanent=False,
        hint="submit the campaign again, with the right sha256 and size where it gives them; or put the file back",
    )


def with_url(first: Source, url: Source, origin: str = "a URL") -> Source:
    """`first`, which gives up at once; the URL where that has nothing or cannot be reached for now; and so on, until one has it all.

    What refuses is not asked again; the last refusal is raised. `origin`: the URL, for the device's owner, where the end came from there.
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
