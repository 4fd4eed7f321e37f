"""Which workers serve this submitter although it does not trust them. They are asked for their status, which they give only to peers that
they allow.

No task and no model is named to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import trio

from protocol.errors import SarkError
from protocol.messages.pool import ManifestMessage
from protocol.messages.work import WORK, Denied, ShowCredentials, StatusRequest, WorkerStatus
from protocol.values.advert import Advert
from protocol.words import ProtocolId
from swarm.net.links import Links
from swarm.net.network import Network

MAX_ASKED: Final = 64
CONCURRENT: Final = 32
ANSWER_S: Final = 3.0


async def serving_peers(
    network: Network,
    adverts: Iterable[Advert],
    token: ShowCredentials,
    manifests: Sequence[tuple[str, ManifestMessage | None]] = (),
) -> frozenset[str]:
    """The workers that serve the peer for which the token speaks. At most `MAX_ASKED` are asked; a worker that does not answer does not
    count.
    """
    serving: set[str] = set()
    slots = trio.CapacityLimiter(CONCURRENT)

    async def ask(links: Links, advert: Advert) -> None:
        async with slots:
            try:
                link = await links.get(advert.peer, advert.addresses, max_wait_s=ANSWER_S)
                if isinstance(await link.call(token, max_wait_s=ANSWER_S), Denied):
                    for name, manifest in manifests:  # the worker's copy may predate our membership
                        if name in advert.pools and manifest is not None:
                            await link.call(manifest, max_wait_s=ANSWER_S)
                    await link.call(token, max_wait_s=ANSWER_S)
                if isinstance(await link.call(StatusRequest(), max_wait_s=ANSWER_S), WorkerStatus):
                    serving.add(advert.peer)
            except SarkError:
                return

    async with trio.open_nursery() as nursery:
        links = Links(network, ProtocolId.WORK, WORK, nursery)
        async with trio.open_nursery() as asking:
            for advert in list(adverts)[:MAX_ASKED]:
                asking.start_soon(ask, links, advert)
        nursery.cancel_scope.cancel()
    return frozenset(serving)
