"""The devices: their positions in the key space, their places on the earth, and their adverts. A function of the seed.

Devices are numbers. What a number stands for (its id, its advert) is computed on demand, so that a million devices cost little.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import Final

import base58
import numpy as np
import numpy.typing as npt

from protocol.values.advert import Advert, GpuInfo, SignedAdvert, UnitOffer, advert_body
from protocol.values.index_keys import EVERYBODY
from swarm.index.covered import is_covered

CPU: Final = "CPU (ONNX)"
_UNITS: Final = (("GPU (ONNX)", 0.25), ("GPU (CoreML)", 0.15), ("GPU (CUDA)", 0.08), ("NPU (ONNX)", 0.04))
"""Units besides the processor, with the share of devices that have each."""
_GPUS: Final = 60
TEAM: Final = 10
"""Number of devices that share a label of their own."""
GIB: Final = 2**30
_ID_PREFIX: Final = bytes.fromhex("002408011220")

PLACES: Final = ("Europe", "US east", "US west", "South America", "Japan", "India", "Australia")
_SHARES: Final = (30, 20, 14, 8, 14, 10, 4)
ROUND_TRIPS_MS: Final = (
    (25, 85, 145, 200, 230, 120, 260),
    (85, 25, 65, 120, 160, 200, 200),
    (145, 65, 25, 175, 105, 225, 140),
    (200, 120, 175, 25, 270, 310, 315),
    (230, 160, 105, 270, 25, 125, 110),
    (120, 200, 225, 310, 125, 25, 150),
    (260, 200, 140, 315, 110, 150, 25),
)
"""Round trips between two places, in ms, of the order that cloud providers publish for their data centres. The delay of each line
is added."""
LINE_MS: Final = (1.0, 12.0)
"""Delay of each device's line, both ways: drawn evenly."""


@dataclass
class Population:
    """`count` devices from one seed."""

    count: int
    seed: int

    def __post_init__(self) -> None:
        draw = np.random.default_rng(self.seed)
        keys = (
            hashlib.sha256(_ID_PREFIX + self._public(number)).digest()[:8] for number in range(self.count)
        )
        self.positions: npt.NDArray[np.uint64] = np.fromiter(
            (int.from_bytes(key, "big") for key in keys), np.uint64, self.count
        )
        """The first 64 bits of each device's routing key."""
        shares = np.array(_SHARES) / sum(_SHARES)
        self.place = draw.choice(len(PLACES), self.count, p=shares).astype(np.uint8)
        self.line_s = (draw.uniform(*LINE_MS, self.count) / 1000).astype(np.float32)
        self.units = draw.random((self.count, len(_UNITS))) < np.array([share for _, share in _UNITS])
        self.gpu = (_GPUS ** draw.random(self.count)).astype(np.uint8)
        self.ram = np.minimum(draw.exponential(1.6, self.count), 7).astype(np.uint8)
        self._numbers: dict[str, int] = {}
        self.advert = cache(self._advert)
        self.peer = cache(self._peer)

    def number(self, peer: str) -> int:
        """The number of a peer whose id was computed before."""
        return self._numbers[peer]

    def rtt(self, one: int, other: int) -> float:
        """Seconds of a round trip."""
        wide = ROUND_TRIPS_MS[self.place[one]][self.place[other]] / 1000
        return wide + float(self.line_s[one]) + float(self.line_s[other])

    def address(self, number: int) -> str:
        """Each device has its own private address, so that no quota per network applies."""
        return f"/ip4/10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}/tcp/4001"

    def signed(self, number: int, seq: int = 1 << 32) -> SignedAdvert:
        """The advert as stored, without a real signature, since none is checked."""
        advert = self.advert(number).model_copy(update={"seq": seq, "addresses": (self.address(number),)})
        return SignedAdvert(body=advert_body(advert), signature=bytes(64))

    def team(self, number: int) -> str:
        """The label that the device shares with nine others at random positions."""
        return f"t{number // TEAM}"

    def _public(self, number: int) -> bytes:
        return hashlib.sha256(b"%d device %d" % (self.seed, number)).digest()

    def _peer(self, number: int) -> str:
        peer = base58.b58encode(_ID_PREFIX + self._public(number)).decode()
        self._numbers[peer] = number
        return peer

    def _advert(self, number: int) -> Advert:
        units = [CPU, *(unit for (unit, _), has in zip(_UNITS, self.units[number], strict=True) if has)]
        gpus = (GpuInfo(name=f"GPU model {self.gpu[number]}"),) if self.units[number][:3].any() else ()
        return Advert(
            peer=self.peer(number),
            seq=0,
            device=f"device-{number}",
            name=f"node-{number}",
            ram=(4 << int(self.ram[number])) * GIB,
            units=tuple(UnitOffer(unit=unit, runtime="onnxruntime 1.31") for unit in units),
            gpus=gpus,
            labels={"team": self.team(number)},
        )

    def having(self, attribute: str) -> npt.NDArray[np.int64]:
        """The numbers of the devices with that attribute."""
        kind, _, value = attribute.partition(":")
        everybody = np.arange(self.count)
        named = [unit for unit, _ in _UNITS]
        match kind:
            case "node":
                return everybody
            case "unit":
                return everybody if value == CPU else everybody[self.units[:, named.index(value)]]
            case "ram":
                return everybody[self.ram == int(value) - 32]
            case "gpu":
                has = self.units[:, :3].any(axis=1)
                return everybody[has & (self.gpu == int(value.removeprefix("GPU model ")))]
            case "device":
                return everybody[int(value.removeprefix("device-")) :][:1]
            case "label" if value.startswith("team=t"):
                return everybody[int(value.removeprefix("team=t")) * TEAM :][:TEAM]
        return everybody[:0]


class Shards:
    """Which devices lie in which shard, over all devices; counted once for each requested attribute."""

    def __init__(self, population: Population, split_threshold: int) -> None:
        self.population = population
        self.split_threshold = split_threshold
        self._of: dict[str, npt.NDArray[np.int64]] = {}
        self._stored: dict[str, npt.NDArray[np.int64]] = {}
        self._sorted = np.sort(population.positions)
        self._part = np.zeros(population.count, np.int64)
        """For each device, by position: the number of its part of the shard of everybody."""
        self._depths: list[int] = []
        """The depth of each part."""
        self._divide(0, population.count, 0, 0)

    def _divide(self, low: int, high: int, depth: int, prefix: int) -> None:
        if high - low <= self.split_threshold:
            self._part[low:high] = len(self._depths)
            self._depths.append(depth)
            return
        middle = np.searchsorted(self._sorted, np.uint64((2 * prefix + 1) << (63 - depth)))
        self._divide(low, int(middle), depth + 1, 2 * prefix)
        self._divide(int(middle), high, depth + 1, 2 * prefix + 1)

    def having(self, attribute: str) -> npt.NDArray[np.int64]:
        """The numbers of the devices with that attribute, sorted by position."""
        if attribute not in self._of:
            some = self.population.having(attribute)
            self._of[attribute] = some[np.argsort(self.population.positions[some])]
        return self._of[attribute]

    def stored(self, attribute: str) -> npt.NDArray[np.int64]:
        """Those of them that publish under the attribute, because it is not covered where they are."""
        if attribute == EVERYBODY:
            return self.having(attribute)
        if attribute not in self._stored:
            some = self.having(attribute)
            parts = self._part[np.searchsorted(self._sorted, self.population.positions[some])]
            counts = np.bincount(parts, minlength=len(self._depths)).tolist()
            covered = [
                is_covered(attribute, count, whole=depth == 0, before=False)
                for depth, count in zip(self._depths, counts, strict=True)
            ]
            self._stored[attribute] = some[~np.array(covered)[parts]]
        return self._stored[attribute]

    def count(self, attribute: str, depth: int, prefix: int) -> int:
        """How many devices in that part of the key space have the attribute."""
        return len(self._within(self.having(attribute), depth, prefix))

    def of(self, attribute: str, depth: int, prefix: int) -> npt.NDArray[np.int64]:
        """The devices in that shard."""
        return self._within(self.stored(attribute), depth, prefix)

    def _within(self, some: npt.NDArray[np.int64], depth: int, prefix: int) -> npt.NDArray[np.int64]:
        if not depth or not len(some):
            return some
        positions = self.population.positions[some]
        low, high = prefix << (64 - depth), (prefix + 1 << (64 - depth)) - 1
        return some[
            np.searchsorted(positions, np.uint64(low)) : np.searchsorted(positions, np.uint64(high), "right")
        ]

    def leaf(self, attribute: str, depth: int, prefix: int) -> bool:
        """Whether publishers have settled at this shard: it is not too full, and its parent is."""
        full = len(self.of(attribute, depth, prefix)) > self.split_threshold
        return not full and (
            depth == 0 or len(self.of(attribute, depth - 1, prefix >> 1)) > self.split_threshold
        )
