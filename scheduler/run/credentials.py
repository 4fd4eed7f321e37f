"""Shows workers what entitles this scheduler to use them.

a link comes up ──────▶ introduce: every token that others delegated to this scheduler
not-allowed ──────────▶ retry: the manifests of its pools, as the worker's copy may be old; and all tokens again, as a restart loses them
half of a token's life is over ─▶ introduce shows what has been delegated meanwhile
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from protocol.errors import Unreachable
from protocol.messages.pool import ManifestMessage
from protocol.messages.work import CredentialsReply, Denied, ShowCredentials
from swarm.net.link import Link
from swarm.pools.membership import Credential

RETRY_S: Final = 30.0
"""Seconds between two times at which a worker that denies is shown everything."""
LOOK_S: Final = 5.0
"""Seconds for which credentials and manifests are used before they are read again."""
MAX_SHOWN: Final = 8
"""Tokens shown to one worker: as many as it stores for one peer."""
MAX_MANIFESTS: Final = 8

log = structlog.get_logger("sark.workers")


@dataclass(slots=True)
class _Introduction:
    """What a worker was shown over a link."""

    link: Link
    done: trio.Event = field(default_factory=trio.Event)
    renew_at: float = float("inf")
    """Wall seconds at which to show the worker new tokens."""
    retry_at: float = float("-inf")


@dataclass(eq=False)
class CredentialPresenter:
    """Shows tokens. Tokens for other campaigns than this scheduler's come last, since a worker stores only a few for one peer."""

    credentials: Callable[[], Sequence[Credential]]
    """The tokens to show."""
    wall: Callable[[], float]
    """Seconds since the epoch."""
    at_hand: Callable[[], Collection[str]] = tuple
    """The campaigns of this scheduler."""
    manifests: Callable[[], Sequence[ManifestMessage]] = tuple
    """The manifests of this home's pools."""
    _introductions: dict[str, _Introduction] = field(default_factory=dict)
    _tokens: tuple[Credential, ...] = ()
    _read_at: float = float("-inf")

    async def introduce(self, link: Link) -> None:
        """Return once the worker at this link has been shown the tokens. Raises `Unreachable` if the link breaks meanwhile."""
        before = self._introductions.get(link.peer)
        if before is not None and before.link is link and self.wall() < before.renew_at:
            if not before.done.is_set():
                await before.done.wait()
            return
        retry_at = before.retry_at if before is not None else float("-inf")
        introduction = self._introductions[link.peer] = _Introduction(link, retry_at=retry_at)
        if trio.current_time() - self._read_at >= LOOK_S:
            self._tokens, self._read_at = tuple(self.credentials()), trio.current_time()
        try:
            await self._show(introduction)
        finally:
            introduction.done.set()

    async def retry(self, link: Link) -> bool:
        """The worker denied for lack of permission: show it everything, unless that was just done. Returns whether it accepted any of
        it.
        """
        introduction, now = self._introductions.get(link.peer), trio.current_time()
        if introduction is None or introduction.link is not link or now < introduction.retry_at:
            return False
        introduction.retry_at = now + RETRY_S
        accepted = False
        for manifest in self.manifests()[:MAX_MANIFESTS]:
            accepted |= await self._call(link, manifest)
        self._tokens, self._read_at = tuple(self.credentials()), now
        return await self._show(introduction) or accepted

    async def _show(self, introduction: _Introduction) -> bool:
        accepted = False
        at_hand = self.at_hand()
        ordered = sorted(self._tokens, key=lambda c: bool(c.campaign) and c.campaign not in at_hand)
        for credential in ordered[:MAX_SHOWN]:
            message = ShowCredentials(issuer=credential.issuer, token=credential.token)
            if await self._call(introduction.link, message):
                accepted = True
                now = self.wall()
                introduction.renew_at = min(introduction.renew_at, now + (credential.expires - now) / 2)
        return accepted

    async def _call(self, link: Link, message: ShowCredentials | ManifestMessage) -> bool:
        answer = await link.call(message)
        if isinstance(answer, CredentialsReply):
            return True
        if isinstance(answer, Denied):
            log.info("credentials.denied", peer=link.peer, why=answer.detail)
            return False
        await link.reset()
        name = type(message).__name__
        raise Unreachable(f"{link.peer} answered {name} with {type(answer).__name__}")
