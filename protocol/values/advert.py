"""What a device says of itself: its units, memory, GPUs, labels and pools, as one value that fits in 1 KiB once signed."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from protocol.wire.base import AddressText, Count, Line, Message, Name, PeerName, Sha256

ADVERT_TTL_S: Final = 900


MAX_ADVERT: Final = 1024
"""Bytes of a signed advert's body."""


class UnitOffer(Message):
    """A compute unit that was tried and works here."""

    unit: Line
    """Public name, such as `CPU (ONNX)`."""
    runtime: Line
    """Such as `onnxruntime 1.31.1`."""


class GpuInfo(Message):
    """One GPU as its driver reports it."""

    name: Line
    vram: Count | None = None
    """Bytes; None: its driver does not tell."""
    driver: Line = ""


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
