"""Showing workers what this scheduler may have done there, before anything else is said on a link.

a link comes up ──▶ introduce: a Present for each credential of the pools that the worker advertises, and for each that was handed over
Denied, not-allowed ──▶ again: all there are, once; a worker forgets when it restarts, and adverts may be behind
half of what was presented is over ──▶ introduce presents what has been renewed meanwhile
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from protocol.errors import Unreachable
from protocol.messages.work import CredentialsReply, Denied, ShowCredentials
from swarm.net.link import Link
from swarm.pools.membership import Credential

AGAIN_S: Final = 30.0
"""A worker that denies is shown everything again at most so often."""
LOOK_S: Final = 5.0
"""How old what is known of the credentials may be."""
MAX_SHOWN: Final = 8
"""Credentials shown to one worker: as many as it keeps of one peer."""

log = structlog.get_logger("sark.workers")


@dataclass(slots=True)
class _Met:
    """What a worker was shown over a link."""

    link: Link
    shown: trio.Event = field(default_factory=trio.Event)
    renew_at: float = float("inf")
    """Wall seconds."""
    again_at: float = float("-inf")


class CredentialPresenter:
    """`credentials`: all that can be presented now; `wall`: seconds since the epoch; `at_hand`: the campaigns that this scheduler has.

    What is for other campaigns than those is shown last: a worker keeps only so much of one peer.
    """

    def __init__(
        self,
        credentials: Callable[[], Sequence[Credential]],
        wall: Callable[[], float],
        at_hand: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._at_hand = at_hand
        self._read = credentials
        self._wall = wall
        self._met: dict[str, _Met] = {}
        self._known: tuple[Credential, ...] = ()
        self._known_at = float("-inf")

    async def introduce(self, link: Link, pools: Collection[str] | None) -> None:
        """See that the worker at this link has been shown what is for it, before this returns. `pools`: those it advertises, if known.

        Raises `Unreachable` when the link breaks meanwhile.
        """
        met = self._met.get(link.peer)
        if met is not None and met.link is link and self._wall() < met.renew_at:
            await met.shown.wait()
            return
        met = self._met[link.peer] = _Met(link, again_at=met.again_at if met is not None else float("-inf"))
        try:
            await self._show(met, self._fitting(pools))
        finally:
            met.shown.set()

    async def again(self, link: Link) -> bool:
        """The worker said not-allowed: show it everything there is, unless that was just done. Gives whether it took any of it."""
        met, now = self._met.get(link.peer), trio.current_time()
        if met is None or met.link is not link or now < met.again_at + AGAIN_S:
            return False
        met.again_at, self._known_at = now, float("-inf")
        return await self._show(met, self._credentials())

    def _credentials(self) -> tuple[Credential, ...]:
        now = trio.current_time()
        if now - self._known_at >= LOOK_S:
            self._known, self._known_at = tuple(self._read()), now
        return self._known

    def _fitting(self, pools: Collection[str] | None) -> tuple[Credential, ...]:
        return tuple(
            c for c in self._credentials() if pools is None or not c.pool_name or c.pool_name in pools
        )

    async def _show(self, met: _Met, credentials: Sequence[Credential]) -> bool:
        taken = False
        at_hand = self._at_hand()
        ordered = sorted(credentials, key=lambda c: bool(c.campaign) and c.campaign not in at_hand)
        for credential in ordered[:MAX_SHOWN]:
            answer = await met.link.call(ShowCredentials(issuer=credential.issuer, token=credential.token))
            now = self._wall()
            if isinstance(answer, CredentialsReply):
                taken = True
                met.renew_at = min(met.renew_at, now + (credential.expires - now) / 2)
            elif isinstance(answer, Denied):
                log.info("present.denied", peer=met.link.peer, pool=credential.pool_name, why=answer.detail)
            else:
                await met.link.reset()
                raise Unreachable(f"{met.link.peer} answered Present with {type(answer).__name__}")
        return taken
