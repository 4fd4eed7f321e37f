"""The manifest of a campaign: everything that another scheduler needs to carry it on, signed by its owner.

    the owner's scheduler ──make──▶ manifest ──blob by sha256──▶ workers that hold its leases ──▶ whoever adopts the campaign

It has two layers, so that a worker knows whose manifest it stores without unpacking it: the `ManifestCover` names owner and campaign, and
contains the `CampaignManifest` as zlib-compressed canonical msgpack. The signature covers the campaign and the compressed bytes. Unpacking
is bounded.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from protocol.errors import RemoteProtocolError
from protocol.values.task import MAX_TASK, FileName, Task, read_task
from protocol.wire.base import Count, Line, Message, PeerName, Priority, Seconds, Sha256, Signature
from protocol.wire.codec import inflate, pack, read_value

MAX_MANIFEST: Final = 4 * 1024 * 1024
"""Bytes of a manifest as it is sent and stored."""
MAX_UNPACKED: Final = 32 * 1024 * 1024
MAX_MANIFEST_TASKS: Final = 10_000
_MAX_MODELS: Final = MAX_MANIFEST_TASKS
_MAX_ELEMENTS: Final = 8 * (MAX_MANIFEST_TASKS + _MAX_MODELS)
_MAX_SPEC: Final = 2 * 1024 * 1024
_COVER_BYTES: Final = 1024
"""More than the size of everything around the body."""
_CONTEXT: Final = b"sark campaign 1\n"

CampaignId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
"""A campaign's id in a manifest; it must be usable as a file name."""


class ManifestModel(Message):
    """A model of the campaign, by its content."""

    name: FileName
    """The campaign's name for it."""
    sha256: Sha256
    size: Count
    facts: Annotated[str, Field(max_length=16 * 1024)] = ""
    """What the plan stores about it."""


class CampaignManifest(Message):
    """What a campaign is. The states of its tasks are not in it: the workers report them."""

    v: Literal[1] = 1
    campaign: CampaignId
    name: Line
    owner: PeerName
    """The campaign's owner: the scheduler that its tasks name."""
    spec: Annotated[str, Field(max_length=_MAX_SPEC)]
    """The campaign as JSON."""
    attempts: Annotated[int, Field(ge=1, le=1000)]
    backoff_s: Seconds
    wait_s: Seconds
    limit_s: Seconds | None = None
    """Limit of the whole campaign; None: no limit."""
    created: Count = 0
    """When it was submitted, in seconds since 1970 on the submitting machine's clock; 0: unknown. Its limit counts from then."""
    priority: Priority = 50
    models: Annotated[tuple[ManifestModel, ...], Field(max_length=_MAX_MODELS)] = ()
    tasks: Annotated[
        tuple[Annotated[bytes, Field(max_length=MAX_TASK)], ...], Field(max_length=MAX_MANIFEST_TASKS)
    ]
    """The canonical bytes of every task, in the campaign's order."""


class ManifestCover(Message):
    """A manifest as it is sent: its owner, its campaign, and the whole, packed and signed."""

    v: Literal[1] = 1
    campaign: CampaignId
    owner: PeerName
    body: Annotated[bytes, Field(max_length=MAX_MANIFEST)]
    """zlib of the canonical bytes of a `CampaignManifest`."""
    signature: Signature

    @property
    def message(self) -> bytes:
        return _message(self.campaign, self.body)


@dataclass(frozen=True, slots=True)
class OpenedManifest:
    """A manifest that was checked for consistency, with its tasks read."""

    manifest: CampaignManifest
    tasks: tuple[Task, ...]


def make_manifest(manifest: CampaignManifest, sign: Callable[[bytes], bytes]) -> bytes | None:
    """The bytes to store and serve, signed by the owner's `sign`; None if the campaign is too large for a manifest."""
    body = _body(manifest)
    if body is None:
        return None
    signature = sign(_message(manifest.campaign, body))
    cover = ManifestCover(campaign=manifest.campaign, owner=manifest.owner, body=body, signature=signature)
    return pack(cover.to_wire())


def fits_manifest(spec: str, tasks: Sequence[bytes]) -> bool:
    """Whether a campaign with these tasks (canonical bytes) is small enough for a manifest."""
    tried = CampaignManifest.model_construct(
        campaign="c", name="", owner="", spec=spec, attempts=1, backoff_s=0.0, wait_s=0.0, tasks=tuple(tasks)
    )
    return len(tasks) <= MAX_MANIFEST_TASKS and len(spec) <= _MAX_SPEC and _body(tried) is not None


def read_cover(data: bytes) -> ManifestCover:
    """The cover in `data`; the caller must check its signature. Raises `RemoteProtocolError`."""
    return read_value(ManifestCover, data, max_bytes=MAX_MANIFEST)


def open_manifest(cover: ManifestCover) -> OpenedManifest:
    """The content of a cover whose signature was checked. Raises `RemoteProtocolError` if it is inconsistent."""
    plain = inflate(cover.body, MAX_UNPACKED, "manifest")
    manifest = read_value(CampaignManifest, plain, max_bytes=MAX_UNPACKED, max_elements=_MAX_ELEMENTS)
    if (manifest.campaign, manifest.owner) != (cover.campaign, cover.owner):
        raise RemoteProtocolError("bad manifest: its cover is of another campaign")
    tasks = tuple(read_task(body) for body in manifest.tasks)
    models = {model.sha256 for model in manifest.models}
    for task in tasks:
        if (task.campaign, task.scheduler) != (manifest.campaign, manifest.owner):
            raise RemoteProtocolError(f"bad manifest: {task.task} is of another campaign or owner")
        if models and any(model.sha256 not in models for model in task.models()):
            raise RemoteProtocolError(f"bad manifest: {task.task} needs a model that is not in it")
    if len({task.task for task in tasks}) != len(tasks):
        raise RemoteProtocolError("bad manifest: it contains a task twice")
    return OpenedManifest(manifest, tasks)


def _body(manifest: CampaignManifest) -> bytes | None:
    plain = pack(manifest.to_wire())
    body = zlib.compress(plain, 6) if len(plain) <= MAX_UNPACKED else None
    return body if body is not None and len(body) <= MAX_MANIFEST - _COVER_BYTES else None


def _message(campaign: str, body: bytes) -> bytes:
    return _CONTEXT + campaign.encode() + b"\n" + body
