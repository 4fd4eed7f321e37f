"""A worker's results on its disk: on their way to their scheduler, and kept a while for who adopts the campaign. See `sim_worker`."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from node.capacity.allocations import Allocation
from node.capacity.ledger import Ledger
from node.serve.delivery import AGAIN_S, RESULT_S, WORTHLESS
from protocol.errors import Unreachable
from protocol.messages.work import Accepted, AdoptRequest, LiveLease, Result, Stale
from protocol.values.record import Record
from protocol.words import Reason, RunOutcome
from tests.simulation.kernel import Flag
from tests.simulation.wire import End


@dataclass
class Runs:
    """How runs go on this worker."""

    seconds: tuple[float, float] = (0.2, 6.0)
    crashes: float = 0.0
    """Share of runs that crash."""
    lies: bool = False
    """It sends results that are not its own, twice, and late."""


@dataclass
class Item:
    """A result that waits for its scheduler, or is kept."""

    peer: str
    owner: str
    """Whose campaign it is of."""
    result: Result
    homeless: bool
    """The disk did not take it: it is gone with the process."""


class Results:
    """Part of `sim_worker.SimWorker`."""

    name: str
    runs: Runs
    ledger: Ledger
    outbox: dict[str, Item]
    kept: dict[str, Item]
    """Settled ones."""
    manifests: set[tuple[str, str]]
    """(campaign, principal) of which it has the campaign manifest."""
    disk_full: bool
    _rng: random.Random
    _news: Flag
    _under_way: set[str]
    _carry_out: Callable[[], None]
    _link: Callable[[str, str, str], End | None]

    def _file(self, place: Allocation, outcome: RunOutcome, reason: Reason | None, permanent: bool) -> None:
        task = place.wanted.task
        words = f"{self.name} {task.task} {place.wanted.attempt} {place.fence.key()} {outcome}"
        sha = hashlib.sha256(words.encode()).hexdigest()
        record = Record.model_construct(
            campaign=task.campaign,
            task=task.task,
            attempt=place.wanted.attempt,
            fence=place.fence,
            worker=self.name,
            model_sha256=task.model.sha256,
            outcome=outcome,
            reason=reason,
            permanent=permanent,
            detail="",
        )
        result = Result.model_construct(
            campaign=task.campaign,
            task=task.task,
            attempt=place.wanted.attempt,
            lease=place.lease,
            fence=place.fence,
            sha256=sha,
            size=100,
            signature=b"",
            body=record,
        )
        self.outbox[sha] = Item(place.peer, place.wanted.principal, result, homeless=self.disk_full)
        self._tell_news()

    def _tell_news(self) -> None:
        news, self._news = self._news, Flag()
        news.set()

    async def _send_results(self, end: End) -> None:
        while not end.closed.is_set:
            news = self._news
            for sha, item in tuple(self.outbox.items()):
                if sha in self._under_way or not self._goes(end, sha):
                    continue
                if not await self._send(end, sha, item):
                    return
            await news.wait(end.me.process, AGAIN_S)

    def _goes(self, end: End, sha: str) -> bool:
        """Whether this is the link for it."""
        item = self.outbox.get(sha)
        if item is None or item.peer != end.peer:
            return False
        return self._link(item.peer, item.owner, item.result.campaign) is end

    async def _send(self, end: End, sha: str, item: Item) -> bool:
        self._under_way.add(sha)
        try:
            answer: Any = await end.call(item.result, RESULT_S)
        except Unreachable:
            end.drop()
            return False
        finally:
            self._under_way.discard(sha)
        assert isinstance(answer, (Accepted, Stale))
        if not self._goes(end, sha):
            return True  # the campaign was adopted meanwhile, and so was its result
        if not self.runs.lies:
            speaks = item.result.campaign in end.epochs  # under the newest one: else it would not go there
            kept = isinstance(answer, Accepted) or answer.reason not in WORTHLESS or not speaks
            self._settle(sha, keep=kept)
        elif self._rng.random() < 0.5:  # a liar sends on, under what it has now
            self.outbox.pop(sha, None)
            self._invent(item)
        self.ledger.acknowledge(item.result.lease)
        self._carry_out()
        return True

    def _settle(self, sha: str, *, keep: bool) -> None:
        item = self.outbox.pop(sha, None)
        if item is not None and keep and not item.homeless:
            self.kept[sha] = item

    def _invent(self, item: Item) -> None:
        """Something that is not so."""
        changes: list[dict[str, Any]] = [
            {"attempt": item.result.attempt + 1},
            {"fence": item.result.fence.model_copy(update={"number": item.result.fence.number + 1})},
            {"task": item.result.task[:-1] + "1"},
            {"lease": item.result.lease + "0"},
        ]
        change = self._rng.choice(changes)
        record = item.result.body.model_copy(update=change)  # type: ignore[union-attr]
        sha = hashlib.sha256(repr((item.result.sha256, change)).encode()).hexdigest()
        if len(self.outbox) < 20 and self._rng.random() < 0.7:
            result = item.result.model_copy(update={**change, "sha256": sha, "body": record})
            self.outbox[sha] = replace(item, result=result, homeless=True)

    # -- for who adopts ---------------------------------------------------------------------------------------------------------

    def _leases(self, campaign: str, principal: str) -> Iterator[LiveLease]:
        """The ended runs whose results are here."""
        for item, settled in self._records(campaign, principal):
            yield LiveLease(
                task=item.result.task,
                attempt=item.result.attempt,
                lease=item.result.lease,
                fence=item.result.fence,
                reporting=not settled,
                settled=settled,
            )

    def _records(self, campaign: str, principal: str) -> list[tuple[Item, bool]]:
        found = [(item, False) for item in self.outbox.values()]
        found += [(item, True) for item in self.kept.values()]
        return [each for each in found if (each[0].result.campaign, each[0].owner) == (campaign, principal)]

    def _hand_over(self, peer: str, principal: str, ask: AdoptRequest) -> None:
        """The campaign's results go to who adopts it. A disk that is full does not take that: the adopter asks again."""
        moved = False
        for item, settled in self._records(ask.campaign, principal):
            if (settled and not ask.again) or (not settled and item.peer == peer):
                continue
            if self.disk_full and not item.homeless:
                break
            self.kept.pop(item.result.sha256, None)
            self.outbox[item.result.sha256] = replace(item, peer=peer)
            moved = True
        if moved:
            self._tell_news()
