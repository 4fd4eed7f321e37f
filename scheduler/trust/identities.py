"""Which key a device id belongs to. Pure.

A device id is a worker's own claim. It belongs to the key with which this home first used it. It belongs to further keys only if one signer
says so: a pool whose manifest lists the keys with that id, or the user, with `sark-node trust KEY --same-device-as KEY`. A trusted key
takes the id from a stranger's key, never the reverse. An id that was not used yet belongs to the home's own worker, if that worker claims
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from shlex import quote
from typing import Final

from protocol.errors import CampaignError
from protocol.values.advert import Advert
from protocol.values.requirement import Op, Requirement
from protocol.values.trust import TrustKind
from scheduler.trust.book import TrustBook
from swarm.base.text import safe_text

_RANK: Final = (TrustKind.OWN, TrustKind.POOL, TrustKind.LISTED, TrustKind.STRANGER)
MAX_CLAIMS: Final = 100_000
"""Most device ids whose first claim is remembered."""


@dataclass(frozen=True, slots=True)
class DeviceClash:
    """A key claims the device id of another key."""

    device: str
    holder: str
    claimant: str

    def __str__(self) -> str:
        device = safe_text(self.device, 80)
        return (
            f"device {device} belongs to the key {self.holder}, but {self.claimant} claims it too. Only if that is another worker on "
            f"the same machine: sark-node trust {self.claimant} --same-device-as {self.holder} --device {quote(device)}"
        )


def clash_lines(trusted: Sequence[str], strangers: Sequence[str]) -> list[str]:
    """For people: the clashes of trusted workers, and those of strangers, which are only counted if they would fill the screen."""
    if len(strangers) > 1:
        return [
            *trusted,
            f"{len(strangers)} strangers' workers claim device ids of others, and do not count as those devices",
        ]
    return [*trusted, *strangers]


@dataclass(frozen=True, slots=True)
class DisputedDevice:
    """A device id that two keys claim without a known owner."""

    device: str
    one: str
    other: str

    def error(self) -> CampaignError:
        """The error for a campaign that names the device."""
        device = safe_text(self.device, 80)
        return CampaignError(
            f"the campaign names device {device}, which two keys claim: {self.one} and {self.other}",
            hint=f"assign the device to one key: sark-node trust {self.one} --device {quote(device)}, or the same with the other key",
        )


def bound(book: TrustBook, device: str, one: str, other: str) -> bool:
    """Whether one signer says that both keys are workers of this device."""
    if one == other:
        return True
    keys = {one, other}
    signers = (frozenset(book.pinned.get(device, ())), *book.signed.get(device, {}).values())
    return any(keys <= those for those in signers)


def claim_takes_precedence(book: TrustBook, one: str, other: str) -> bool:
    """Whether the claim of `one` takes precedence over the earlier claim of `other`: `one` is trusted, and `other` is a stranger's."""
    return book.knows(one) and not book.knows(other)


@dataclass(slots=True)
class DeviceClaims:
    """Which keys were seen to claim each device id, and which key holds it."""

    book: Callable[[], TrustBook]
    _first: dict[str, str] = field(default_factory=dict)
    """Device id → the best claim seen; of equal claims the earlier one."""

    def clash(self, device: str, peer: str) -> DeviceClash | None:
        """Why this key's claim is not accepted; None: it is. Also records the claim."""
        book = self.book()
        before = self._first.get(device)
        if (before is None and len(self._first) < MAX_CLAIMS) or (
            before is not None and (peer == book.home or claim_takes_precedence(book, peer, before))
        ):
            self._first[device] = peer
        holder = self.holder(device)
        if holder is None or bound(book, device, holder, peer):
            return None
        return DeviceClash(device, holder, peer)

    def key_of(self, device: str, peer: str) -> str:
        """The key that represents all workers of this worker's device in results: the first key to which the device is pinned, else its
        holder. For a key without a right to the id, the key itself.
        """
        book = self.book()
        pinned = book.pinned.get(device, ())
        if peer in pinned:
            return pinned[0]
        holder = self.holder(device)
        return holder if holder is not None and bound(book, device, holder, peer) else peer

    def holder(self, device: str) -> str | None:
        """The key to which the id belongs: the pinned one, else the home's own, else the best claim; but a trusted key goes before a
        stranger's.
        """
        book = self.book()
        pinned = book.pinned.get(device, ())
        signed = (min(keys) for keys in book.signed.get(device, {}).values())
        first = [self._first[device]] if device in self._first else []
        claims = [*pinned[:1], *(first if first == [book.home] else []), *signed, *first]
        holder: str | None = None
        for key in claims:
            if holder is None or claim_takes_precedence(book, key, holder):
                holder = key
        return holder


def clashes(book: TrustBook, adverts: Iterable[Advert]) -> dict[str, DeviceClash]:
    """The clashes of these adverts with each other and with pinned devices, by the peer id of the rejected key."""
    claims = DeviceClaims(lambda: book)
    ranked = sorted(adverts, key=lambda advert: (_RANK.index(book.trust_of(advert.peer).kind), advert.peer))
    found = {advert.peer: claims.clash(advert.device, advert.peer) for advert in ranked}
    return {peer: clash for peer, clash in found.items() if clash is not None}


def named_devices(requirements: Iterable[Requirement]) -> frozenset[str]:
    """The device ids that these requirements name."""
    values = (
        clause.value
        for requirement in requirements
        for clause in requirement.clauses
        if clause.attribute == "device" and clause.op in (Op.EQ, Op.IN)
    )
    return frozenset(id for value in values for id in (value if isinstance(value, tuple) else (str(value),)))


def disputed(book: TrustBook, device: str, adverts: Iterable[Advert]) -> DisputedDevice | None:
    """The first two of these adverts that claim the device with equal right; None: its owner is known, or only one key claims it."""
    claimants = sorted(advert.peer for advert in adverts if advert.device == device)
    known = [peer for peer in claimants if book.knows(peer)]
    settled = [
        *book.pinned.get(device, ())[:1],
        *(min(keys) for keys in book.signed.get(device, {}).values()),
    ]
    if book.home in claimants or any(book.knows(key) or not known for key in settled):
        return None
    first, *others = known or claimants or [""]
    other = next((peer for peer in others if not bound(book, device, first, peer)), None)
    return None if other is None else DisputedDevice(device, first, other)


def pins_with(pinned: Mapping[str, tuple[str, ...]], device: str, key: str) -> dict[str, tuple[str, ...]]:
    """The pins after this key was used: it holds the id from now on, alone unless it was already one of its keys."""
    keys = pinned.get(device, ())
    return {**pinned, device: keys if key in keys else (key,)}
