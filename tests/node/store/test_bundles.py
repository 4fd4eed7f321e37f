"""A model that is a folder: one blob in transfer, a verified read-only folder for the run."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
import trio

from node.store import bundles
from node.store.cache import ModelCache
from node.store.files import MODEL_FILE, MODEL_FOLDER
from protocol.errors import RemoteProtocolError, RunError
from protocol.messages.work import Granted
from protocol.values.record import Record
from protocol.values.task import Model
from protocol.wire.bundle import BundlePart, pack_header
from protocol.words import Reason, RunOutcome
from swarm.blobs.bundles import contents
from tests.node.conftest import get_model

FILES = {"model.onnx": b"graph" * 10, "Data/weights.bin": b"weights" * 3000, "Data/empty": b""}


def folder_of(where: Path, files: dict[str, bytes]) -> Path:
    folder = where / "net.mlpackage"
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


@pytest.fixture
def blob(tmp_path: Path) -> bytes:
    return b"".join(contents(folder_of(tmp_path, FILES)))


def named(content: bytes) -> Model:
    return Model(name="net.mlpackage", sha256=hashlib.sha256(content).hexdigest(), size=len(content))


class Source:
    """A source that gives the bytes and counts its calls."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.asked = 0

    async def __call__(self, offset: int, sink: Any, progress: Any) -> None:
        self.asked += 1
        await trio.to_thread.run_sync(sink, bytearray(self.content[offset:]))


def cache(folder: Path, cap: int = 10**9) -> ModelCache:
    return ModelCache(folder, cap, free=lambda path: 10**12)


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


async def test_a_run_is_given_the_folder_with_read_only_files(tmp_path: Path, blob: bytes) -> None:
    async with cache(tmp_path / "cache").using(named(blob), Source(blob)) as path:
        assert files(path) == FILES
        assert path.is_dir()
        if os.name == "posix":
            assert {each.stat().st_mode & 0o777 for each in path.rglob("*") if each.is_file()} == {MODEL_FILE}
            assert path.stat().st_mode & 0o777 == (path / "Data").stat().st_mode & 0o777 == MODEL_FOLDER


async def test_it_is_fetched_and_unpacked_once(tmp_path: Path, blob: bytes) -> None:
    models, source = cache(tmp_path / "cache"), Source(blob)
    first = await get_model(models, named(blob), source)
    made = (first / "model.onnx").stat().st_ino
    again = await get_model(cache(tmp_path / "cache"), named(blob), source)
    assert (again / "model.onnx").stat().st_ino == made
    assert source.asked == 1
    assert models.used_bytes == 2 * len(blob)


@pytest.mark.parametrize("harm", ["changed", "gone", "added", "link"])
async def test_a_folder_that_was_touched_is_made_again(tmp_path: Path, blob: bytes, harm: str) -> None:
    models = cache(tmp_path / "cache")
    folder = await get_model(models, named(blob), Source(blob))
    folder.chmod(0o700)
    graph = folder / "model.onnx"
    graph.chmod(0o600)
    if harm == "changed":
        graph.write_bytes(b"grapX" * 10)
    elif harm == "added":
        (folder / "more").write_bytes(b"")
    else:
        graph.unlink()
    if harm == "link":
        graph.symlink_to("Data/weights.bin")
    assert files(await get_model(models, named(blob), Source(blob))) == FILES


async def test_what_is_evicted_goes_with_its_folder(tmp_path: Path, blob: bytes) -> None:
    models = cache(tmp_path / "cache", cap=3 * len(blob))
    await get_model(models, named(blob), Source(blob))
    other = bytes(2 * len(blob))
    await get_model(models, named(other), Source(other))
    assert not list((tmp_path / "cache").glob("*.folder"))


def bad(parts: list[BundlePart], rest: bytes) -> bytes:
    return pack_header(parts) + rest


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (bad([BundlePart("a", 3, "0" * 64)], b"abc"), "hash"),
        (
            bad([BundlePart("a", 3, hashlib.sha256(b"abc").hexdigest())], b"abcd"),
            "its size is not that of its files",
        ),
        (bad([BundlePart("a", 9, "0" * 64)], b"abc"), "its size is not that of its files"),
        (b"sark bundle 1\n\0\0\0\x05[[]]]", "bad bundle"),
    ],
)
async def test_a_bundle_that_does_not_hold_together_fails_the_task_and_leaves_nothing(
    tmp_path: Path, content: bytes, why: str
) -> None:
    models = cache(tmp_path / "cache")
    with pytest.raises(RunError, match=why) as caught:
        await get_model(models, named(content), Source(content))
    assert (caught.value.reason, caught.value.permanent) == (Reason.BROKEN_MODEL, True)
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []


def test_what_an_unpacking_that_was_cut_off_left_is_no_hindrance(tmp_path: Path, blob: bytes) -> None:
    file = tmp_path / "blob"
    file.write_bytes(blob)
    (tmp_path / "x.unpacking" / "Data").mkdir(parents=True)
    (tmp_path / "x.unpacking" / "Data" / "weights.bin").write_bytes(b"half")
    bundles.unpack(file, tmp_path / "x.folder")
    assert bundles.is_unpacked(file, tmp_path / "x.folder")
    assert not (tmp_path / "x.unpacking").exists()
    file.write_bytes(blob[:-1])
    with pytest.raises(RemoteProtocolError):
        bundles.unpack(file, tmp_path / "y.folder")


async def test_a_task_with_a_folder_is_run_on_the_folder_and_reported_under_one_hash(
    world: Any, blob: bytes
) -> None:
    observed: list[dict[str, bytes]] = []
    world.device.change = lambda script: observed.append(files(Path(script.order.model)))
    world.device.go.set()
    world.ann.content = blob
    await world.start()
    link = await world.link()
    await link.ask(world.ann.commit(world.ann.task(model=named(blob))), Granted)
    record: Record = await world.ann.record()
    assert (record.outcome, record.model_sha256) == (RunOutcome.COMPLETE, named(blob).sha256)
    assert observed == [FILES]
