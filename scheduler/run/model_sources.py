"""Which workers have a model of ours, for those that are about to fetch it; with a transfer grant that lets them have it from there.

    worker ──Where──▶ scheduler: holds it a task that needs the model? ─▶ Others: who has it, or is fetching it too; and the transfer grant

What is known comes from the workers themselves: their adverts, their quotes, the tasks that were given them. Where that is little the
index is asked for the model's hash meanwhile, and the next who asks hears more.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Final

import structlog
import trio

from protocol.errors import SarkError
from protocol.messages.blobs import MAX_OTHERS, HolderInfo, Holders
from protocol.signed.transfer_grant import TransferGrant, grant_message
from scheduler.core.commands import Command
from scheduler.core.ranking import WorkerView
from scheduler.core.scheduler import SchedulerCore
from scheduler.planning.candidates import DeviceFinder
from swarm.net.identity import Identity

LASTS_S: Final = 3600.0
"""A transfer grant; who still fetches by then is given a fresh one with the next answer."""
FEW: Final = 4
LOOK_AGAIN_S: Final = 30.0
MAX_LOOKED: Final = 256
"""Models of which it is remembered when they were looked for."""

log = structlog.get_logger("sark.scheduler")


class ModelSources:
    """Answers `Where`."""

    def __init__(
        self,
        core: SchedulerCore,
        index: DeviceFinder,
        identity: Identity,
        *,
        nursery: trio.Nursery,
        carry_out: Callable[[Sequence[Command]], None],
        wall: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._core, self._index, self._identity = core, index, identity
        self._nursery, self._carry_out = nursery, carry_out
        self._wall, self._rng = wall, rng
        self._looked: dict[str, float] = {}

    async def where(self, peer: str, sha256: str) -> Holders | None:
        """For `swarm.blobs.serve_blobs`: None for a peer that holds no task of ours which needs it."""
        core = self._core
        if not core.may_fetch(peer, sha256):
            return None
        found = [
            view
            for view in core.state.workers.values()
            if view.peer != peer
            and (sha256 in view.warm or core.may_fetch(view.peer, sha256))
            and worth_asking(view)
        ]
        if len(found) < FEW:
            self._look(sha256)
        if len(found) > MAX_OTHERS:
            found = self._rng.sample(found, MAX_OTHERS)
        self._rng.shuffle(found)
        others = tuple(HolderInfo(peer=view.peer, addresses=view.addresses[:8]) for view in found)
        return Holders(grant=self._grant(peer, sha256), others=others)

    def _grant(self, peer: str, sha256: str) -> TransferGrant:
        me, until = self._identity.peer_id, math.ceil(self._wall() + LASTS_S)
        signature = self._identity.sign(grant_message(me, peer, sha256, until))
        return TransferGrant(giver=me, taker=peer, sha256=sha256, until=until, signature=signature)

    def _look(self, sha256: str) -> None:
        now = trio.current_time()
        if now - self._looked.get(sha256, -math.inf) < LOOK_AGAIN_S:
            return
        self._looked.pop(sha256, None)
        self._looked[sha256] = now
        while len(self._looked) > MAX_LOOKED:
            del self._looked[next(iter(self._looked))]
        self._nursery.start_soon(self._ask_index, sha256)

    async def _ask_index(self, sha256: str) -> None:
        try:
            result = await self._index.model(sha256, 2 * MAX_OTHERS)
        except SarkError as exc:
            log.info("model.not_looked_up", sha256=sha256, why=exc.what)
            return
        adverts = [each.advert for each in result.found]
        self._carry_out(self._core.on_adverts("", adverts, trio.current_time()))


def worth_asking(view: WorkerView) -> bool:
    """Whether it can be reached, as far as is known, and serves us: else it would not know what our transfer grant is worth."""
    return bool(view.addresses) and view.refused is None and view.unreachable == 0
