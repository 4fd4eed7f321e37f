"""Fetches a run's model from the URL that its task names, as a whole or in pieces."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

import structlog
import trio

from node.run.model_source import RETRY_S
from node.store.cache import Progress, Source
from protocol.errors import RunError, Unreachable
from protocol.values.task import Model
from protocol.words import Reason
from swarm.blobs.swarm_download import Mirror
from swarm.download.download import EDGE, Edge, download
from swarm.download.response import FileChanged, ResponseHead
from swarm.download.urls import OTHERS_URL_REACH, OWNER_URL_REACH, read_url

TRIES: Final = 3
"""Tries in a row before another source, if there is one, is next."""

log = structlog.get_logger("sark.urls")


def url_source(url: str, model: Model, *, owner: bool, edge: Edge | None = None) -> Source:
    """A source that fetches `model` from `url`. `owner`: the task is the device owner's.

    The source raises `Refused` if the URL or a redirect may not be followed, or there is no such file; `RunError` (wrong-hash) if the file
    is no longer the campaign's; `Unreachable` if a later try may succeed.
    """
    reach = OWNER_URL_REACH if owner else OTHERS_URL_REACH

    async def fetch(offset: int, sink: Callable[[bytearray], object], progress: Progress) -> None:
        address = read_url(url, reach)
        # only the cache has the beginning of a resumed file
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
                    edge=edge or EDGE,
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
            raise _changed(model, f"{address.shown} now has a different file of the same size")

    return fetch


def url_pieces(url: str, model: Model, *, owner: bool, edge: Edge | None = None) -> Mirror:
    """Like `url_source`, but in pieces, for a download from the swarm. The caller verifies each piece."""
    reach, tag = OWNER_URL_REACH if owner else OTHERS_URL_REACH, ""

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
            edge=edge or EDGE,
        )
        tag = head.tag
        return data

    return Mirror(f"the URL of {model.name}", piece)


def _changed(model: Model, why: str) -> RunError:
    return RunError(
        f"{model.name}: the URL does not hold the campaign's file (any more): {why}",
        reason=Reason.WRONG_HASH,
        permanent=False,
        hint="submit the campaign again, with the right sha256 and size if the campaign file gives them; or put the file back",
    )
