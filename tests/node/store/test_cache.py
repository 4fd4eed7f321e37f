"""Models on disk: fetched once, verified, resumed, evicted, and never incomplete."""

from __future__ import annotations

import errno
import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from node.store.cache import DEFAULT_CAP, ROOM_AHEAD, ModelCache, Progress, default_cap
from node.store.files import MODEL_FILE
from protocol.errors import Refused, RunError, Unreachable
from protocol.values.task import Model
from protocol.words import Reason
from tests.node.conftest import get_model

MIB = 1024 * 1024


def model(number: int, size: int = 1000) -> tuple[Model, bytes]:
    content = random.Random(number).randbytes(size)
    return Model(name=f"m{number}.onnx", sha256=hashlib.sha256(content).hexdigest(), size=size), content


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Holder:
    """A source that sends in two halves, counts, and misbehaves on request."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.offsets: list[int] = []
        self.sent = 0
        self.then: Exception | None = None
        self.gate: trio.Event | None = None

    async def __call__(self, offset: int, sink: Callable[[bytearray], object], progress: Progress) -> None:
        self.offsets.append(offset)
        middle = (offset + len(self.content)) // 2
        for part in (self.content[offset:middle], self.content[middle:]):
            await trio.to_thread.run_sync(sink, bytearray(part))
            self.sent += len(part)
            progress(offset + self.sent, len(self.content))
            if self.gate is not None:
                await self.gate.wait()
            if self.then is not None:
                then, self.then = self.then, None
                raise then


def cache(folder: Path, cap: int = 10**9, free: int = 10**12) -> ModelCache:
    return ModelCache(folder, cap, free=lambda path: free)


async def test_a_model_is_fetched_once_and_is_read_only(tmp_path: Path) -> None:
    stored = cache(tmp_path)
    what, content = model(1)
    source = Holder(content)
    assert not stored.has(what.sha256)
    path = await get_model(stored, what, source)
    assert path.read_bytes() == content
    assert path.stat().st_mode & 0o777 == MODEL_FILE
    assert await get_model(stored, what, source) == path
    assert len(source.offsets) == 1
    assert stored.has(what.sha256)
    assert stored.recent(4) == (what.sha256,)


async def test_those_who_ask_at_once_share_one_download(tmp_path: Path) -> None:
    stored = cache(tmp_path)
    what, content = model(1)
    source = Holder(content)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(get_model, stored, what, source)
    assert len(source.offsets) == 1


async def test_when_the_first_who_asked_is_cancelled_the_second_carries_on_from_there(tmp_path: Path) -> None:
    stored = cache(tmp_path)
    what, content = model(1)
    source = Holder(content)
    source.gate = trio.Event()
    async with trio.open_nursery() as nursery:
        first = trio.CancelScope()

        async def ask_first() -> None:
            with first:
                await get_model(stored, what, source)

        nursery.start_soon(ask_first)
        await trio.testing.wait_all_tasks_blocked(0.02)
        nursery.start_soon(get_model, stored, what, source)
        await trio.testing.wait_all_tasks_blocked(0.02)
        first.cancel()
        source.gate.set()
    assert source.offsets == [0, 500]
    assert (await get_model(stored, what, source)).read_bytes() == content


async def test_a_half_of_an_earlier_life_is_carried_on(tmp_path: Path) -> None:
    what, content = model(1)
    (tmp_path / f"{what.sha256}.part").write_bytes(content[:600])
    source = Holder(content)
    path = await get_model(cache(tmp_path), what, source)
    assert source.offsets == [600]
    assert path.read_bytes() == content


async def test_a_corrupt_half_is_thrown_away_and_all_of_it_fetched_again(tmp_path: Path) -> None:
    what, content = model(1)
    (tmp_path / f"{what.sha256}.part").write_bytes(b"?" * 600)
    source = Holder(content)
    path = await get_model(cache(tmp_path), what, source)
    assert source.offsets == [600, 0]
    assert path.read_bytes() == content


async def test_content_that_is_wrong_twice_fails_and_leaves_nothing(tmp_path: Path) -> None:
    what, _ = model(1)
    stored = cache(tmp_path)
    with pytest.raises(RunError) as error:
        await get_model(stored, what, Holder(b"x" * 1000))
    assert error.value.reason is Reason.WRONG_HASH
    assert files(tmp_path) == []
    assert not stored.has(what.sha256)


@pytest.mark.parametrize(
    "why", [Unreachable("the link broke"), Refused("not for you", reason=Reason.NOT_ALLOWED)]
)
async def test_a_source_that_fails_leaves_the_half_for_the_next_try(tmp_path: Path, why: Exception) -> None:
    what, content = model(1)
    source = Holder(content)
    source.then = why
    stored = cache(tmp_path)
    with pytest.raises(RunError) as error:
        await get_model(stored, what, source)
    assert error.value.reason is Reason.FETCH_FAILED
    await get_model(stored, what, source)
    assert source.offsets == [0, 500]


async def test_a_file_that_was_touched_is_hashed_again_and_a_changed_one_replaced(tmp_path: Path) -> None:
    stored = cache(tmp_path)
    what, content = model(1)
    source = Holder(content)
    path = await get_model(stored, what, source)
    os.utime(path, (1, 1))
    assert not stored.has(what.sha256)
    await get_model(stored, what, source)
    assert len(source.offsets) == 1, "touched, and still what it was"
    path.chmod(0o600)
    path.write_bytes(b"y" * 1000)
    assert (await get_model(stored, what, source)).read_bytes() == content
    assert len(source.offsets) == 2


async def test_a_changed_file_with_its_old_size_and_time_is_found_out(tmp_path: Path) -> None:
    stored = cache(tmp_path)
    what, content = model(1)
    path = await get_model(stored, what, Holder(content))
    before = path.stat()
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.write(b"evil")
    path.chmod(0o400)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not stored.has(what.sha256)
    assert (await get_model(stored, what, Holder(content))).read_bytes() == content


async def test_the_default_cap_does_not_shrink_as_the_cache_fills(tmp_path: Path) -> None:
    what, content = model(1, size=1000)
    disk = 1200 + 2 * 64 * MIB
    await get_model(ModelCache(tmp_path, free=lambda path: disk), what, Holder(content))
    full = ModelCache(tmp_path, free=lambda path: disk - 1000)
    assert full._cap == disk // 2


async def test_the_next_life_knows_what_was_verified_and_hashes_what_it_does_not_know(tmp_path: Path) -> None:
    what, content = model(1)
    path = await get_model(cache(tmp_path), what, Holder(content))
    assert cache(tmp_path).has(what.sha256)
    (tmp_path / "index.json").write_bytes(b"{ not json")
    reborn = cache(tmp_path)
    assert not reborn.has(what.sha256)
    assert reborn.used_bytes == 1000
    unused = Holder(content)
    assert await get_model(reborn, what, unused) == path
    assert unused.offsets == []


async def test_the_least_recently_used_goes_first_and_what_is_in_use_stays(tmp_path: Path) -> None:
    stored = cache(tmp_path, cap=2500)
    one, two, three = model(1), model(2), model(3)
    async with stored.using(one[0], Holder(one[1])):
        await get_model(stored, two[0], Holder(two[1]))
        await get_model(stored, three[0], Holder(three[1]))
        assert stored.recent(4) == (three[0].sha256, one[0].sha256)
        assert not (tmp_path / f"{two[0].sha256}.model").exists()


async def test_what_was_of_use_again_outlives_what_came_after_it_also_in_the_next_life(
    tmp_path: Path,
) -> None:
    stored = cache(tmp_path, cap=2500)
    one, two, three = model(1), model(2), model(3)
    for what, content in (one, two, one):
        await get_model(stored, what, Holder(content))
    reborn = cache(tmp_path, cap=2500)
    await get_model(reborn, three[0], Holder(three[1]))
    assert reborn.recent(4) == (three[0].sha256, one[0].sha256)


async def test_when_all_is_in_use_there_is_no_room(tmp_path: Path) -> None:
    stored = cache(tmp_path, cap=1500)
    one, two = model(1), model(2)
    async with stored.using(one[0], Holder(one[1])) as path:
        with pytest.raises(RunError, match="models in use fill the cache") as error:
            await get_model(stored, two[0], Holder(two[1]))
        assert error.value.reason is Reason.DISK_FULL
        assert path.read_bytes() == one[1]


async def test_a_model_larger_than_the_cache_is_refused_before_a_byte_is_fetched(tmp_path: Path) -> None:
    what, content = model(1)
    source = Holder(content)
    with pytest.raises(RunError, match=r"larger \(1000 B\) than the model cache \(999 B\)"):
        await get_model(cache(tmp_path, cap=999), what, source)
    assert source.offsets == []


class Silent:
    """A source that sends `size` bytes of zeros, then fails."""

    def __init__(self, size: int, then: Exception | None = None) -> None:
        self.size, self.then = size, then

    async def __call__(self, offset: int, sink: Callable[[bytearray], object], progress: Progress) -> None:
        for _ in range(self.size // MIB):
            await trio.to_thread.run_sync(sink, bytearray(MIB))
            progress(offset, self.size)
            await trio.lowlevel.checkpoint()
        raise self.then or Refused("no more", reason=Reason.NOT_ALLOWED)


@pytest.mark.parametrize("again", [1, 5])
async def test_who_only_claims_to_have_a_large_model_evicts_none(tmp_path: Path, again: int) -> None:
    stored = cache(tmp_path, cap=8 * MIB)
    others = [model(number, MIB) for number in range(8)]
    for what, content in others:
        await get_model(stored, what, Holder(content))
    large = Model(name="large.onnx", sha256="f" * 64, size=8 * MIB)
    for _ in range(again):
        with pytest.raises(RunError, match="no more"):
            await get_model(stored, large, Silent(0))
    assert all(stored.has(what.sha256) for what, _ in others)


async def test_room_is_made_as_the_bytes_come(tmp_path: Path) -> None:
    stored = cache(tmp_path, cap=ROOM_AHEAD + 8 * MIB)
    others = [model(number, MIB) for number in range(8)]
    for what, content in others:
        await get_model(stored, what, Holder(content))
    large = Model(name="large.onnx", sha256="f" * 64, size=ROOM_AHEAD + 8 * MIB)
    with pytest.raises(RunError, match="no more"):
        await get_model(stored, large, Silent(3 * MIB))
    assert sum(stored.has(what.sha256) for what, _ in others) == 7, "the piece after 16 MiB beyond the first"
    content = bytes(large.size)
    whole = Model(name="zeros.onnx", sha256=hashlib.sha256(content).hexdigest(), size=len(content))
    await get_model(stored, whole, Holder(content))
    assert stored.recent(9) == (whole.sha256,)
    assert stored.used_bytes == whole.size


async def test_a_disk_that_fills_up_ends_in_a_clear_error_with_nothing_of_others_lost(tmp_path: Path) -> None:
    stored = cache(tmp_path)
    one, two = model(1), model(2)
    path = await get_model(stored, one[0], Holder(one[1]))
    source = Holder(two[1])
    source.then = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(RunError, match="is full") as error:
        await get_model(stored, two[0], source)
    assert error.value.reason is Reason.DISK_FULL
    assert path.read_bytes() == one[1]
    assert not [name for name in files(tmp_path) if name.endswith(".part")]
    assert (await get_model(stored, two[0], source)).read_bytes() == two[1]


async def test_a_damaged_model_that_cannot_be_removed_fails_the_fetch_alone(tmp_path: Path) -> None:
    what, content = model(1)
    stored = cache(tmp_path)
    (tmp_path / f"{what.sha256}.model").mkdir()
    with pytest.raises(RunError, match="cannot write to the model cache") as error:
        await get_model(stored, what, Holder(content))
    assert error.value.reason is Reason.FETCH_FAILED


async def test_halves_of_others_go_before_models(tmp_path: Path) -> None:
    what, content = model(1)
    old = tmp_path / f"{'b' * 64}.part"
    old.write_bytes(b"half")
    await get_model(cache(tmp_path), what, Holder(content))
    assert not old.exists()


async def test_a_name_that_is_no_hash_reaches_no_path(tmp_path: Path) -> None:
    bad = Model.model_construct(name="m", sha256="../../etc/passwd", size=1)
    with pytest.raises(ValueError, match="not a sha256"):
        await get_model(cache(tmp_path), bad, Holder(b"x"))


def test_the_default_cap_leaves_half_of_a_small_disk() -> None:
    assert default_cap(10 * 1024**3) == 5 * 1024**3
    assert default_cap(10**15) == DEFAULT_CAP


def test_nobody_who_runs_the_models_of_root_reaches_them_and_cannot_list_them(tmp_path: Path) -> None:
    """To all other users the folder is closed."""
    ModelCache(tmp_path / "models")
    wanted = 0o711 if os.geteuid() == 0 else 0o700
    assert (tmp_path / "models").stat().st_mode & 0o777 == wanted
