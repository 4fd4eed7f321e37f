"""Merges the pages of a query: adverts verified, the newest of each peer. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from protocol.messages import index as say
from protocol.signed.advert import SignedAdvert
from protocol.values.advert import Advert
from protocol.values.index_keys import may_claim
from protocol.values.match import match
from protocol.values.requirement import Requirement
from swarm.index.shard_store import NETWORK_QUOTA, ForgedAdvert, ParsedAdvert, read_signed
from swarm.net.addresses import PeerId, public_network

MAX_VERIFIED: Final = 8_192


@dataclass(frozen=True, slots=True)
class Sighting:
    """A device: its verified advert and the age of that."""

    advert: Advert
    signed: SignedAdvert
    age_s: float


class AdvertCache:
    """Caches adverts whose signature was verified: verifying costs far more than reading."""

    def __init__(self, size: int = MAX_VERIFIED) -> None:
        self._size = size
        self._known: OrderedDict[bytes, ParsedAdvert] = OrderedDict()

    def read(self, signed: SignedAdvert) -> ParsedAdvert:
        """The advert in `signed`. Raises `ForgedAdvert`."""
        name = hashlib.blake2b(signed.body + signed.signature, digest_size=20).digest()
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = read_signed(signed)
            if len(self._known) > self._size:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(name)
        return known


class MergedAdverts:
    """The adverts of one query: of each peer the newest counts, and a tombstone is newest of all."""

    def __init__(self, requirement: Requirement, verified: AdvertCache) -> None:
        self._requirement = requirement
        self._verified = verified
        self._newest: dict[PeerId, Sighting] = {}
        self._fits: dict[PeerId, Sighting] = {}
        self._sure: set[PeerId] = set()

    def add(self, attribute: str, listed: Iterable[say.ListedAdvert], *, sure: bool = False) -> int:
        """Add a page read under `attribute`; returns how many adverts were useless (forged, expired, of another attribute).

        `sure`: from a holder that this node's owner chose: the network quota does not hold for its adverts.
        """
        useless = 0
        for item in listed:
            try:
                advert = self._verified.read(item.advert).advert
            except ForgedAdvert:
                useless += 1
                continue
            if item.age_s > advert.ttl_s or not (advert.gone or may_claim(advert, attribute)):
                useless += 1
                continue
            if sure:
                self._sure.add(advert.peer)
            before = self._newest.get(advert.peer)
            if before is not None and before.advert.seq >= advert.seq:
                continue
            self._newest[advert.peer] = sighting = Sighting(advert, item.advert, item.age_s)
            self._fits.pop(advert.peer, None)
            if not advert.gone and match(self._requirement, advert).fits:
                self._fits[advert.peer] = sighting
        return useless

    def __len__(self) -> int:
        return len(self._fits)

    def results(self) -> tuple[Sighting, ...]:
        """Matching devices, at most eight of each public network, and those from a chosen holder."""
        counter: Counter[str] = Counter()
        results = []
        for sighting in self._fits.values():
            network = public_network(sighting.advert.addresses)
            counter[network] += 1
            if not network or counter[network] <= NETWORK_QUOTA or sighting.advert.peer in self._sure:
                results.append(sighting)
        return tuple(results)
