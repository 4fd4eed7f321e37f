"""What a device says about itself: its units, memory, GPUs, labels and pools. Signed by its node, and stored by holders of the index.

It does not contain live load, which schedulers ask for during negotiation. A signed advert fits in 1 KiB.
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
    """The public name, such as `CPU (ONNX)`."""
    runtime: Line
    """The runtime and its version, such as `onnxruntime 1.31.1`."""
    formats: Annotated[tuple[FormatWord, ...], Field(min_length=1, max_length=8)] | None = None
    """For a third-party driver: the formats it takes. None: the driver does not say, or its framework is in
    `protocol.formats.frameworks`."""


class GpuInfo(Message):
    """One GPU as its driver reports it."""

    name: Line
    vram: Count | None = None
    """In bytes; None: its driver does not report it."""
    driver: Line = ""
    number: Annotated[int, Field(ge=0, le=99)] | None = None
    """Its number if units run on several: `GPU 3 (ONNX)` runs on number 3, `GPU (ONNX)` on the first in the advert. None: units run on
    one."""


class Advert(Message):
    """The profile of one node. Unknown facts are absent (None or empty), never zero."""

    v: Literal[1] = 1
    peer: PeerName
    seq: Count
    """Increases with every version that a node signs; the highest counts."""
    ttl_s: Annotated[int, Field(ge=30, le=3600)] = ADVERT_TTL_S
    gone: bool = False
    """The node has left: this is a tombstone, which outranks older adverts."""
    addresses: Annotated[tuple[AddressText, ...], Field(max_length=8)] = ()
    device: Name
    """The id of the hardware, shared by the nodes of one host (`device_udid`)."""
    name: Name
    version: Line = ""
    pool: Line = ""
    """The namespace in the index; empty: the common one of the swarm."""
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
    """Names of the pools it claims to work for; schedulers check them against the manifests of the pools they are in."""
    sandbox: Literal["full", "partial", "none"] = "none"
    simulated: Literal[True] | None = None
    """It simulates this device, with figures from a script. None: it is a real device."""
    monitors: Annotated[tuple[SensorWord, ...], Field(max_length=16)] | None = None
    """What schedulers can see live while it runs their tasks; None: it does not say."""
    features: Annotated[tuple[Line, ...], Field(max_length=8)] | None = None
    """Abilities of `protocol.values.features` that older workers lack; None: it does not say."""


_CONTEXT: Final = b"sark advert 1\n"


class SignedAdvert(Message):
    """An advert's canonical bytes under its node's key."""

    body: Annotated[bytes, Field(max_length=MAX_ADVERT)]
    signature: Signature


def advert_body(advert: Advert) -> bytes:
    """Canonical bytes. Raises `LocalProtocolError` above the cap, with what to shorten."""
    body = pack(advert.to_wire())
    if len(body) > MAX_ADVERT:
        raise LocalProtocolError(
            f"this node's advert has {len(body)} bytes, but only {MAX_ADVERT} are allowed: use fewer or shorter labels"
        )
    return body


def advert_message(body: bytes) -> bytes:
    """The bytes to sign: never the bare body, so that the signature is valid for nothing else."""
    return _CONTEXT + body


def read_advert(body: bytes) -> Advert:
    """The advert in `body`, not yet verified. Raises `RemoteProtocolError`."""
    return read_value(Advert, body, max_bytes=MAX_ADVERT)
