"""Finds the devices that a campaign admits, whatever else is in the index."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, Protocol

import structlog
import trio

from protocol.errors import SarkError
from protocol.values.advert import Advert
from protocol.values.index_keys import named_peers
from protocol.values.match import compile_requirement
from protocol.values.requirement import Clause, Op, Requirement
from protocol.values.trust import TrustScope
from scheduler.trust.book import TrustBook
from scheduler.trust.identities import DisputedDevice, disputed, named_devices
from swarm.index.query import QueryResult

KEYS: Final = 32
"""Most devices that one query names: as many values as a clause holds."""
DIRECT: Final = 512
"""Most trusted devices that one search queries by name."""
LOOKUPS: Final = 8
"""Most simultaneous queries."""
MAX_CLAUSES: Final = 32
"""Most clauses of a requirement, as in the protocol."""

log = structlog.get_logger("sark.discover")


class Searchable(Protocol):
    """The part of `swarm.index.index.Index` used here."""

    async def query(self, requirement: Requirement, want: int = 16) -> QueryResult: ...


async def find_admitted(
    index: Searchable,
    requirement: Requirement,
    want: int,
    trust: TrustScope,
    book: TrustBook,
    rng: random.Random | None = None,
    *,
    every: bool = False,
) -> tuple[tuple[Advert, ...], bool]:
    """The adverts, and whether they are complete.

    Trusted devices are queried by their keys, so that no number of strangers crowds them out: all of them with `every`, else at most
    `DIRECT`, drawn anew each time. The index is queried without keys only for strangers, or when there are more keys.
    """
    named = named_peers(requirement)
    trust = trust.naming(named)
    keys = [] if named else list(dict.fromkeys((*sorted(trust.named), *book.peers())))
    every = every or len(keys) <= DIRECT
    if not every:
        keys = (rng or random.Random()).sample(keys, DIRECT)
    questions = [
        (_among(keys[first : first + KEYS], requirement), KEYS) for first in range(0, len(keys), KEYS)
    ]
    if named or trust.anyone or not every:
        questions.append((requirement, want))
    adverts: dict[str, Advert] = {}
    complete: list[bool] = []
    slots, fits = trio.CapacityLimiter(LOOKUPS), compile_requirement(requirement)

    async def ask(question: Requirement, most: int) -> None:
        async with slots:
            try:
                result = await index.query(question, most)
            except SarkError as exc:
                log.warning("index.unreachable", why=exc.what)
                complete.append(False)
                return
        complete.append(result.complete)
        adverts.update(
            {
                each.advert.peer: each.advert
                for each in result.devices
                if trust.admits(each.advert.peer, book.trust_of(each.advert.peer)) and fits(each.advert)
            }
        )

    async with trio.open_nursery() as nursery:
        for question in questions:
            nursery.start_soon(ask, *question)
    return tuple(adverts.values()), all(complete)


async def disputed_by(
    index: Searchable, requirements: Sequence[Requirement], trust: TrustScope, book: TrustBook
) -> DisputedDevice | None:
    """A device that one of these requirements names, and that two keys admitted by `trust` claim."""
    adverts: dict[str, Advert] = {}
    for need in dict.fromkeys(requirements):
        if named_devices([need]):
            found, _ = await find_admitted(index, need, DIRECT, trust, book)
            adverts |= {advert.peer: advert for advert in found}
    disputes = (disputed(book, device, adverts.values()) for device in sorted(named_devices(requirements)))
    return next(filter(None, disputes), None)


def _among(keys: Sequence[str], requirement: Requirement) -> Requirement:
    """The requirement restricted to these peers. The index may evaluate fewer clauses: its answers are checked again."""
    among = Clause(attribute="peer", op=Op.IN, value=tuple(keys))
    return Requirement(clauses=(among, *requirement.clauses)[:MAX_CLAUSES])
