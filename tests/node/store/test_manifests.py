"""A worker keeps the campaign manifests of campaigns whose leases or results it has, and accepts only those of the campaign's owner."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from node.store.manifests import MAX_MANIFESTS, MAX_RETRY_S, RETRY_S, ManifestStore
from protocol.errors import Unreachable
from protocol.values.campaign_manifest import CampaignManifest, ManifestModel, make_manifest, read_cover
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts, task_body
from protocol.wire.codec import pack
from swarm.net.identity import Identity

OWNER = Identity.from_seed("owner")
SHA = "a" * 64


def manifest(
    campaign: str = "c-one", *, signer: Identity = OWNER, owner: str = OWNER.peer_id, name: str = "one"
) -> bytes:
    task = Task(
        campaign=campaign,
        task=f"{campaign}/1",
        scheduler=owner,
        model=Model(name="m.onnx", sha256=SHA, size=10),
        unit="CPU (ONNX)",
        requirement=Requirement(),
        measure=Measure(),
        timeouts=Timeouts(),
    )
    made = CampaignManifest(
        campaign=campaign,
        name=name,
        owner=owner,
        spec="{}",
        attempts=3,
        backoff_s=5.0,
        wait_s=60.0,
        models=(ManifestModel(name="m", sha256=SHA, size=10),),
        tasks=(task_body(task),),
    )
    return make_manifest(made, signer.sign) or b""


class Source:
    """Schedulers that have campaign manifests, and may be gone."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.taken: list[str] = []
        self.gone = False

    def add(self, data: bytes) -> tuple[str, int]:
        sha256 = hashlib.sha256(data).hexdigest()
        self.content[sha256] = data
        return sha256, len(data)

    async def take(self, peer: str, sha256: str, size: int, sink: Callable[[bytearray], object]) -> None:
        await trio.lowlevel.checkpoint()
        self.taken.append(peer)
        if self.gone:
            raise Unreachable("it is gone")
        sink(bytearray(self.content[sha256]))


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def taken_in(manifests: ManifestStore, source: Source, data: bytes, campaign: str = "c-one") -> str:
    sha256, size = source.add(data)
    manifests.note(campaign, OWNER.peer_id, "the scheduler", sha256, size)
    await manifests.fetch(campaign, OWNER.peer_id, ())
    return sha256


async def test_what_a_commit_names_is_fetched_once_and_kept_over_restarts(tmp_path: Path) -> None:
    source = Source()
    manifests = ManifestStore(tmp_path, source.take)
    data = manifest()
    sha256 = await taken_in(manifests, source, data)
    await taken_in(manifests, source, data)
    assert source.taken == ["the scheduler"]
    for each in (manifests, ManifestStore(tmp_path, source.take)):
        card = each.of("c-one", OWNER.peer_id)
        assert card is not None
        assert (card.sha256, card.size, card.models) == (sha256, len(data), (SHA,))
        assert each.naming(SHA) == (card,)
        assert each.find(sha256) == (card, tmp_path / f"{sha256}.manifest")
        assert (tmp_path / f"{sha256}.manifest").read_bytes() == data
    assert manifests.of("c-one", "another") is None


async def test_a_manifest_that_cannot_be_had_is_asked_for_with_a_later_run(tmp_path: Path) -> None:
    source, now = Source(), 5.0
    source.gone = True
    manifests = ManifestStore(tmp_path, source.take, lambda: now)
    await taken_in(manifests, source, manifest())
    assert manifests.of("c-one", OWNER.peer_id) is None
    source.gone = False
    now += RETRY_S
    await manifests.fetch("c-one", OWNER.peer_id, ())
    assert manifests.of("c-one", OWNER.peer_id) is not None


async def test_a_campaigns_first_run_does_not_wait_for_the_manifest_if_it_is_quick_and_the_next_one_brings_it(
    tmp_path: Path,
) -> None:
    source = Source()
    manifests = ManifestStore(tmp_path, source.take)
    for campaign, run_s, waits in (("c-one", 0.1, False), ("c-two", 60.0, True), ("c-three", None, True)):
        sha256, size = source.add(manifest(campaign))
        manifests.note(campaign, OWNER.peer_id, "the scheduler", sha256, size)
        await manifests.fetch(campaign, OWNER.peer_id, (), run_s)
        assert (manifests.of(campaign, OWNER.peer_id) is not None) is waits
    await manifests.fetch("c-one", OWNER.peer_id, (), 0.1)
    assert manifests.of("c-one", OWNER.peer_id) is not None


async def test_a_peer_whose_manifests_do_not_come_holds_up_ever_fewer_runs_and_no_other_peers(
    tmp_path: Path,
) -> None:
    source, now = Source(), 5.0
    source.gone = True
    manifests = ManifestStore(tmp_path, source.take, lambda: now)
    requests: list[float] = []
    for second in range(300):  # one run per second, each naming another campaign manifest
        now = 5.0 + second
        before = len(source.taken)
        await taken_in(manifests, source, manifest(name=str(second)))
        requests += [now - 5.0] * (len(source.taken) - before)
    assert requests == [0.0, RETRY_S, 3 * RETRY_S, 7 * RETRY_S]
    source.gone = False
    sha256, size = source.add(manifest("c-two"))
    manifests.note("c-two", OWNER.peer_id, "another scheduler", sha256, size)
    await manifests.fetch("c-two", OWNER.peer_id, ())
    assert manifests.of("c-two", OWNER.peer_id) is not None


async def test_of_a_manifest_that_was_replaced_nothing_stays_on_disk(tmp_path: Path) -> None:
    source = Source()
    manifests = ManifestStore(tmp_path, source.take)
    for name in ("one", "two", "three"):
        last = await taken_in(manifests, source, manifest(name=name))
    assert names_in(tmp_path) == {f"{last}.card", f"{last}.manifest"}


async def test_what_is_not_the_owners_is_not_kept(tmp_path: Path) -> None:
    other = Identity.from_seed("other")
    forged = manifest(signer=other)
    foreign = manifest(signer=other, owner=other.peer_id)
    moved = pack(read_cover(manifest("c-two")).model_copy(update={"campaign": "c-one"}).to_wire())
    source, now = Source(), 5.0
    manifests = ManifestStore(tmp_path, source.take, lambda: now)
    for bad in (forged, foreign, moved, b"junk"):
        await taken_in(manifests, source, bad)
        now += MAX_RETRY_S
    assert len(source.taken) == 4
    assert len(manifests) == 0
    assert len(ManifestStore(tmp_path, source.take)) == 0


async def test_there_are_never_too_many_and_those_in_use_stay(tmp_path: Path) -> None:
    source: Any = Source()
    manifests = ManifestStore(tmp_path, source.take)
    await taken_in(manifests, source, manifest("c-kept"), "c-kept")
    for n in range(MAX_MANIFESTS):
        sha256, size = source.add(manifest(f"c-{n}"))
        manifests.note(f"c-{n}", OWNER.peer_id, "the scheduler", sha256, size)
        await manifests.fetch(f"c-{n}", OWNER.peer_id, {"c-kept"})
    assert len(manifests) == MAX_MANIFESTS
    assert manifests.of("c-kept", OWNER.peer_id) is not None
    assert manifests.of("c-0", OWNER.peer_id) is None
    assert len(ManifestStore(tmp_path, source.take)) == MAX_MANIFESTS


def test_what_a_kill_left_half_written_is_swept_away(tmp_path: Path) -> None:
    (tmp_path / f"{SHA}.manifest").write_bytes(b"its card never came")
    (tmp_path / f"{'b' * 64}.card").write_bytes(b"junk")
    assert len(ManifestStore(tmp_path, Source().take)) == 0
    assert not any(tmp_path.iterdir())
