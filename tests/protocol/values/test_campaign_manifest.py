"""A campaign manifest returns what the owner put in, and nothing else."""

from __future__ import annotations

import random
import secrets
import zlib
from typing import Any

import pytest

from protocol.errors import RemoteProtocolError
from protocol.values.campaign_manifest import (
    MAX_UNPACKED,
    CampaignManifest,
    ManifestCover,
    ManifestModel,
    fits_manifest,
    make_manifest,
    open_manifest,
    read_cover,
)
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts, task_body
from protocol.wire.codec import pack
from swarm.net.identity import Identity, verify

OWNER = Identity.from_seed("owner")
SHA = "a" * 64


def task(n: int = 1, **changes: Any) -> Task:
    fields: dict[str, Any] = {
        "campaign": "c-one",
        "task": f"c-one/{n}",
        "scheduler": OWNER.peer_id,
        "model": Model(name="m.onnx", sha256=SHA, size=10),
        "unit": "CPU (ONNX)",
        "requirement": Requirement(),
        "measure": Measure(),
        "timeouts": Timeouts(),
    }
    return Task(**(fields | changes))


def manifest(*tasks: Task, **changes: Any) -> CampaignManifest:
    fields: dict[str, Any] = {
        "campaign": "c-one",
        "name": "one",
        "owner": OWNER.peer_id,
        "spec": "{}",
        "attempts": 3,
        "backoff_s": 5.0,
        "wait_s": 60.0,
        "models": (ManifestModel(name="m", sha256=SHA, size=10),),
        "tasks": tuple(task_body(one) for one in tasks or (task(),)),
    }
    return CampaignManifest(**(fields | changes))


def cover_of(plain: bytes, **changes: Any) -> ManifestCover:
    fields: dict[str, Any] = {
        "campaign": "c-one",
        "owner": OWNER.peer_id,
        "body": zlib.compress(plain),
        "signature": bytes(64),
    }
    return ManifestCover(**(fields | changes))


def test_what_was_put_in_comes_out_under_its_owners_signature() -> None:
    made = manifest(task(1), task(2), limit_s=60.0, created=1_790_000_000, priority=70)
    data = make_manifest(made, OWNER.sign)
    assert data is not None
    assert data == make_manifest(made, OWNER.sign)
    cover = read_cover(data)
    assert verify(OWNER.peer_id, cover.message, cover.signature)
    opened = open_manifest(cover)
    assert opened.manifest == made
    assert [one.task for one in opened.tasks] == ["c-one/1", "c-one/2"]


def test_a_campaign_of_as_many_models_as_tasks_can_be_adopted() -> None:
    hashes = [f"{n:064x}" for n in range(1_500)]
    tasks = [task(n, model=Model(name="m.onnx", sha256=sha, size=10)) for n, sha in enumerate(hashes, 1)]
    models = tuple(ManifestModel(name=f"m{n}", sha256=sha, size=10) for n, sha in enumerate(hashes))
    data = make_manifest(manifest(*tasks, models=models), OWNER.sign)
    assert data is not None
    assert len(open_manifest(read_cover(data)).tasks) == len(hashes)


def test_a_signature_holds_for_its_campaign_only() -> None:
    cover = read_cover(make_manifest(manifest(), OWNER.sign) or b"")
    other = cover.model_copy(update={"campaign": "c-two"})
    assert not verify(OWNER.peer_id, other.message, other.signature)
    with pytest.raises(RemoteProtocolError, match="another campaign"):
        open_manifest(other)


@pytest.mark.parametrize(
    "wrong",
    [
        task(campaign="c-two"),
        task(scheduler=Identity.from_seed("other").peer_id),
        task(model=Model(name="m", sha256="b" * 64, size=1)),
        task(beside=(Model(name="m", sha256="b" * 64, size=1),)),
    ],
)
def test_a_task_of_something_else_is_refused(wrong: Task) -> None:
    with pytest.raises(RemoteProtocolError, match="bad manifest"):
        open_manifest(cover_of(pack(manifest(wrong).to_wire())))


def test_a_task_twice_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="twice"):
        open_manifest(cover_of(pack(manifest(task(), task()).to_wire())))


def test_what_unpacks_to_too_much_is_not_unpacked() -> None:
    bomb = cover_of(bytes(MAX_UNPACKED + 1))
    assert len(bomb.body) < 100_000
    with pytest.raises(RemoteProtocolError, match="too long"):
        open_manifest(bomb)


@pytest.mark.parametrize("body", [b"", b"junk", zlib.compress(b"x")[:-2], zlib.compress(b"x") + b"more"])
def test_what_is_no_compressed_data_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        open_manifest(ManifestCover(campaign="c-one", owner=OWNER.peer_id, body=body, signature=bytes(64)))


def test_a_campaign_that_is_too_large_has_no_manifest() -> None:
    noise = random.Random(1)
    assert make_manifest(manifest(tasks=(noise.randbytes(16_000),) * 1_900), OWNER.sign) is not None
    assert (
        make_manifest(manifest(tasks=tuple(noise.randbytes(16_000) for _ in range(300))), OWNER.sign) is None
    )
    assert make_manifest(manifest(tasks=(bytes(16_384),) * 2_100), OWNER.sign) is None


def test_a_campaign_whose_name_could_be_a_path_is_refused() -> None:
    with pytest.raises(ValueError, match="pattern"):
        manifest(campaign="../evil")


def test_what_fits_a_manifest_is_known_before_one_is_made() -> None:
    task = secrets.token_bytes(900)  # cannot be compressed
    assert fits_manifest("{}", [task] * 10_000), "alike tasks are packed well"
    assert not fits_manifest("{}", [task] * 10_001)
    assert fits_manifest("{}", [secrets.token_bytes(900) for _ in range(4_000)])
    assert not fits_manifest("{}", [secrets.token_bytes(900) for _ in range(5_000)])
    assert not fits_manifest(" " * (2 * 1024 * 1024 + 1), [task])
