"""Where an advert is stored in the index: the attributes it is stored under, and the key of each attribute's shard.

A node publishes to one shard for each of its attributes. A reader turns a requirement into attributes that every matching device must have,
and starts with the rarest. Both sides use the functions in this module, so they cannot disagree.

An attribute is one line of text: `node` (everybody), `unit:CPU (ONNX)`, `ram:34` (2^34 ≤ RAM < 2^35), `gpu:NAME`,
`label:site=lab`, `pool:NAME`, `device:ID`, `model:SHA256`, `campaign:ID` (while the node holds its leases).
"""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Final

from pydantic import StringConstraints

from protocol.values.advert import Advert
from protocol.values.requirement import Clause, Op, Requirement
from protocol.wire.codec import pack

NAMESPACE: Final = "sark index 1"
MAX_SHARD_DEPTH: Final = 24
"""Bits of the shard prefix: 2^24 shards of 1,000 adverts are more than enough for all devices."""
MAX_CAMPAIGNS: Final = 8
"""Most campaigns under which one node may be found at a time."""
EVERYBODY: Final = "node"
"""The attribute that every node has."""
_HIGHEST_BUCKET: Final = 42
"""All RAM sizes from 4 TiB up share one bucket."""

AttributeText = Annotated[
    str, StringConstraints(pattern=r"^(node|(unit|ram|gpu|label|device|model|campaign|pool):[ -~]{1,240})$")
]


def shard_prefix(routing_key: bytes, depth: int) -> int:
    """The first `depth` bits of a peer's 32-byte routing key."""
    return int.from_bytes(routing_key[:4], "big") >> (32 - depth)


def shard_key(pool: str, attribute: str, depth: int, prefix: int) -> bytes:
    """The 32-byte key of one shard. Depth 0 has the single prefix 0: the attribute's root."""
    return sha256(pack([NAMESPACE, pool, attribute, depth, prefix])).digest()


def ram_bucket(ram: int) -> int:
    return min(max(ram, 1).bit_length() - 1, _HIGHEST_BUCKET)


def campaign_attribute(campaign: str) -> str:
    """The attribute under which a campaign's workers are found. The only one that an advert does not contain."""
    return f"campaign:{campaign}"


def model_attribute(sha256: str) -> str:
    """The attribute under which devices are found that claim to have a model."""
    return f"model:{sha256}"


def attributes_of(advert: Advert) -> tuple[str, ...]:
    """Every attribute that the advert contains, without duplicates, `node` first."""
    units = [offer.unit for offer in advert.units]
    attributes = [EVERYBODY, f"device:{advert.device}"]
    attributes += [f"unit:{unit}" for unit in units]
    if advert.ram is not None:
        attributes.append(f"ram:{ram_bucket(advert.ram)}")
    attributes += [f"gpu:{gpu.name}" for gpu in advert.gpus if gpu.name]
    attributes += [f"label:{name}={value}" for name, value in sorted(advert.labels.items())]
    attributes += [model_attribute(model) for model in advert.models]
    attributes += [f"pool:{pool}" for pool in advert.pools]
    return tuple(dict.fromkeys(attributes))


def may_claim(advert: Advert, attribute: str) -> bool:
    """Whether a holder may store the advert under `attribute`: the advert contains it, or it is a campaign."""
    return attribute.startswith("campaign:") or attribute in attributes_of(advert)


Alternatives = tuple[str, ...]
"""Attributes of which every matching device has at least one."""


def index_alternatives(requirement: Requirement) -> tuple[Alternatives, ...]:
    """All ways to read the index for `requirement`, simplest first; always ends with `(EVERYBODY,)`.

    Each way finds every matching device by itself, if all of its attributes are read.
    """
    ways: list[Alternatives] = []
    for clause in requirement.clauses:
        way = _way(clause)
        if way and way not in ways:
            ways.append(way)
    ways.sort(key=len)
    least = max((_least_ram(clause) for clause in requirement.clauses), default=0)
    if least:
        ways.append(tuple(f"ram:{bucket}" for bucket in range(ram_bucket(least), _HIGHEST_BUCKET + 1)))
    return (*ways, (EVERYBODY,))


def named_peers(requirement: Requirement) -> frozenset[str]:
    """The peers one of which the requirement asks for by id, if it does: then only their own shards need to be read."""
    for clause in requirement.clauses:
        if clause.attribute == "peer" and clause.op in (Op.EQ, Op.IN):
            return frozenset(clause.value if isinstance(clause.value, tuple) else (str(clause.value),))
    return frozenset()


_LISTS: Final = {"units": "unit", "gpu": "gpu", "models": "model", "pools": "pool"}


def _way(clause: Clause) -> Alternatives:
    values = clause.value if isinstance(clause.value, tuple) else (str(clause.value),)
    name, op = clause.attribute, clause.op
    if op is Op.HAS and name in _LISTS:
        kind = f"{_LISTS[name]}:"
    elif op in (Op.EQ, Op.IN) and name == "device":
        kind = "device:"
    elif op in (Op.EQ, Op.IN) and name.startswith("label."):
        kind = f"label:{name.removeprefix('label.')}="
    else:
        return ()
    return tuple(dict.fromkeys(f"{kind}{value}" for value in values if value))


def _least_ram(clause: Clause) -> int:
    if (
        clause.attribute == "ram"
        and clause.op in (Op.GE, Op.GT, Op.EQ)
        and isinstance(clause.value, (int, float))
    ):
        return max(int(clause.value), 0)
    return 0
