"""What a device says of itself: its units, memory, GPUs, labels and pools. It is signed by its node and stored by holders of the index.

Live load is not in it: schedulers ask for that at negotiation. A signed advert fits in 1 KiB.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from protocol.errors import LocalProtocolError
from protocol.values.reading import SensorWord
from protocol.wire.base import AddressText, Count, Line, Message, Name, PeerName, Sha256, Signature
from protocol.wire.codec import pack, read_value

ADVERT_TTL_S: Final = 900
FormatWord = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]{0,15}$")]
MAX_ADVERT: Final = 1024
"""Bytes of a signed advert's body."""


class UnitOffer(Message):
    """A compute unit that was tried and works here."""

    unit: Line
    """Public name, such as `CPU (ONNX)`."""
    runtime: Line
    """Such as `onnxruntime 1.31.1`."""
    formats: Annotated[tuple[FormatWord, ...], Field(min_length=1, max_length=8)] | None = None
    """Of a driver of somebody else's: the formats it takes. None: it does not say, or its framework is in `protocol.formats.frameworks`."""


class GpuInfo(Message):
    """One GPU as its driver reports it."""

    name: Line
    vram: Count | None = None
    """Bytes; None: its driver does not tell."""
    driver: Line = ""
    number: Annotated[int, Field(ge=0, le=99)] | None = None
    """Of several that units run on; `GPU 3 (ONNX)` runs on number 3, `GPU (ONNX)` on the first in the advert. None: units run on one."""


class Advert(Message):
    """The profile of one node. Unknown facts are absent (None or empty), never zero."""

    v: Literal[1] = 1
    peer: PeerName
    seq: Count
    """Rises with every version a node signs; the highest one counts."""
    ttl_s: Annotated[int, Field(ge=30, le=3600)] = ADVERT_TTL_S
    gone: bool = False
    """The node has left: a tombstone that outranks older adverts."""
    addresses: Annotated[tuple[AddressText, ...], Field(max_length=8)] = ()
    device: Name
    """The hardware's id, shared by the nodes of one host (`device_udid`)."""
    name: Name
    version: Line = ""
    pool: Line = ""
    """The index's namespace; empty: the swarm's common one."""
    os: Line = ""
    arch: Line = ""
    soc: Line = ""
    cores: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Physical cores."""
    threads: Annotated[int, Field(ge=1, le=8192)] | None = None
    """Logical processors."""
    ram: Count | None = None
    """Bytes."""
    units: Annotated[tuple[UnitOffer, ...], Field(max_length=12)] = ()
    gpus: Annotated[tuple[GpuInfo, ...], Field(max_length=8)] = ()
    labels: Annotated[dict[Name, Name], Field(max_length=16)] = {}
    models: Annotated[tuple[Sha256, ...], Field(max_length=4)] = ()
    """Some of the models in the cache, most recently used first."""
    pools: Annotated[tuple[Name, ...], Field(max_length=4)] = ()
    """Names of the pools it works for, as it says; schedulers hold it against the manifests of the pools they are in."""
    sandbox: Literal["full", "partial", "none"] = "none"
    simulated: Literal[True] | None = None
    """It pretends to be this device, and its figures come from a script. None: it is what it says."""
    monitors: Annotated[tuple[SensorWord, ...], Field(max_length=16)] | None = None
    """What schedulers whose tasks it runs can see live; None: it does not say."""
    features: Annotated[tuple[Line, ...], Field(max_length=8)] | None = None
    """What it does and workers of older versions do not, of `protocol.values.features`; None: it does not say."""


_CONTEXT: Final = b"sark advert 1\n"


class SignedAdvert(Message):
    """An advert's canonical bytes under its node's key."""

    body: Annotated[bytes, Field(max_length=MAX_ADVERT)]
    signature: Signature


def advert_body(advert: Advert) -> bytes:
    """Canonical bytes. Raises `LocalProtocolError` above the cap, naming what to shorten."""
    body = pack(advert.to_wire())
    if len(body) > MAX_ADVERT:
        raise LocalProtocolError(
            f"this node's advert has {len(body)} bytes, but only {MAX_ADVERT} are allowed: use fewer or shorter labels"
        )
    return body


def advert_message(body: bytes) -> bytes:
    """What the signature is made over: never the bare body, so that it can stand for nothing else."""
    return _CONTEXT + body


def read_advert(body: bytes) -> Advert:
    """The advert in `body`, not yet verified. Raises `RemoteProtocolError`."""
    return read_value(Advert, body, max_bytes=MAX_ADVERT)
