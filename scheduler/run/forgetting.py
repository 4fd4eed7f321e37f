"""Makes workers forget deleted campaigns: at once, or, if a worker is away, once it is reached again while a scheduler runs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from protocol.errors import RemoteProtocolError, Unreachable
from protocol.messages.forget import Forget, Forgotten
from protocol.messages.work import Denied
from protocol.values.advert import Advert
from protocol.values.features import forgets
from protocol.words import Reason
from scheduler.conversation.effects import Connect
from scheduler.conversation.requests import ask
from scheduler.store.rows import ForgetRow
from scheduler.store.store import Store

FORGET_S: Final = 30.0
"""Seconds to wait for an answer: a worker removes files before it answers."""
RETRY_S: Final = 30.0
MAX_RETRY_S: Final = 3600.0
BUSY_TRIES: Final = 3
"""Tries for which a scheduler without campaigns stays when a worker says that it is busy."""

log = structlog.get_logger("sark.scheduler")


@dataclass(slots=True)
class _Debtor:
    """A worker that is to forget something. Instants are monotonic seconds."""

    due: float
    tries: int = 0
    asking: bool = False
    away: bool = False
    """Whether the worker was not reached, did not answer, or has a version that cannot forget."""


@dataclass(eq=False)
class Forgetting:
    """What the workers of this home are still to forget."""

    store: Store
    start: Callable[[Coroutine[Any, Any, None]], None]
    """Runs a procedure that awaits effects of the conversation."""
    recall: Callable[[], None]
    """Restores the addresses of workers that were reached before."""
    advert_of: Callable[[str], Advert | None]
    """The newest known advert of a worker; None: none is known."""
    now: Callable[[], float]
    _debtors: dict[str, _Debtor] = field(default_factory=dict)
    _known: frozenset[tuple[str, str]] = frozenset()

    @property
    def busy(self) -> bool:
        """Whether a worker is still to be asked before this process may end."""
        return any(
            one.asking or not one.tries or (not one.away and one.tries < BUSY_TRIES)
            for one in self._debtors.values()
        )

    def load(self) -> None:
        """Read what is owed. Call this when another process wrote to the store."""
        owed = self.store.deletions.owed()
        if not owed and not self._debtors:
            return
        if not self._known:
            self.store.deletions.give_up()
            owed = self.store.deletions.owed()
        self.recall()
        for worker in {row.worker for row in owed if (row.campaign, row.worker) not in self._known}:
            debtor = self._debtors.setdefault(worker, _Debtor(self.now()))
            debtor.due, debtor.tries = self.now(), 0
        self._known = frozenset((row.campaign, row.worker) for row in owed)
        self._debtors = {
            worker: one
            for worker, one in self._debtors.items()
            if one.asking or any(row.worker == worker for row in owed)
        }

    def reached(self, peer: str) -> None:
        """A worker answered another request."""
        debtor = self._debtors.get(peer)
        if debtor is not None and debtor.away and self._too_old(peer) is None:
            debtor.due, debtor.away = self.now(), False

    def beat(self) -> None:
        """Ask the workers that are due. Call it a few times each second."""
        for worker, debtor in self._debtors.items():
            if not debtor.asking and debtor.due <= self.now():
                debtor.asking = True
                self.start(self._ask(worker, debtor))

    async def _ask(self, worker: str, debtor: _Debtor) -> None:
        wait_s, asked = min(MAX_RETRY_S, RETRY_S * 2 ** min(debtor.tries, 10)), set[str]()
        debtor.away = (old := self._too_old(worker)) is not None
        if old is not None:
            log.warning(
                "forget.not-known",
                peer=worker,
                device=old.name,
                version=old.version,
                hint="update sark-node there",
            )
        try:
            while not debtor.away and (
                rows := [row for row in self._owed_by(worker) if row.campaign not in asked]
            ):
                asked.add(rows[0].campaign)
                wait_s = await self._ask_one(rows[0]) or wait_s
        except (Unreachable, RemoteProtocolError) as exc:
            debtor.away = True
            log.info("forget.unanswered", peer=worker, why=exc.what)
        debtor.tries, debtor.due, debtor.asking = debtor.tries + 1, self.now() + wait_s, False
        self.load()

    def _too_old(self, worker: str) -> Advert | None:
        """The advert of a worker whose version does not know the message, and would end the link; None: it knows it."""
        advert = self.advert_of(worker)
        return None if advert is None or forgets(advert) else advert

    def _owed_by(self, worker: str) -> list[ForgetRow]:
        return [row for row in self.store.deletions.owed() if row.worker == worker]

    async def _ask_one(self, row: ForgetRow) -> float:
        """Seconds until the worker may be asked again, if it says so. Fails with `Unreachable` and `RemoteProtocolError`."""
        message = Forget(campaign=row.campaign, epoch=row.epoch)
        answer: Forgotten | Denied = await ask(
            await Connect(row.worker), message, Forgotten, Denied, max_wait_s=FORGET_S
        )
        if isinstance(answer, Denied) and answer.reason is not Reason.STALE_EPOCH:
            log.info("forget.denied", peer=row.worker, campaign=row.campaign, why=answer.detail)
            return answer.retry_s or 0.0
        figures = {"left": "led elsewhere"} if isinstance(answer, Denied) else answer.to_wire()
        log.info("campaign.forgotten", peer=row.worker, campaign=row.campaign, **figures)
        self.store.deletions.settle(row.campaign, row.worker)
        return 0.0
