"""How an owner lists and manages the stored models while the worker uses the same folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from node.store import model_files
from node.store.cache import ModelCache, Progress
from node.store.partial import PartialFile
from protocol.errors import ResourceError, RunError, SettingsError
from protocol.values.task import Model
from swarm.base.threads import DISK
from tests.node.conftest import get_model


def file(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def model(content: bytes, name: str = "m.onnx") -> Model:
    return Model(name=name, sha256=hashlib.sha256(content).hexdigest(), size=len(content))


def source(content: bytes) -> object:
    async def fetch(offset: int, target: PartialFile, progress: Progress) -> None:
        target.origin = "scheduler …nF2cDYa1"
        await DISK.run(target, bytearray(content[offset:]))

    return fetch


def cache(folder: Path, cap: int = 10**9) -> ModelCache:
    return ModelCache(folder, cap, free=lambda path: 10**12)


async def test_the_list_says_what_is_there_and_where_it_came_from(tmp_path: Path) -> None:
    await get_model(cache(tmp_path / "c"), model(b"one", "one.onnx"), source(b"one"))
    model_files.add(tmp_path / "c", file(tmp_path, "two.onnx", b"two!"), room=100)
    (tmp_path / "c" / f"{'c' * 64}.part").write_bytes(b"half")
    by_key = {each.name: each for each in model_files.listing(tmp_path / "c")}
    assert by_key["one.onnx"].origin == "scheduler ...nF2cDYa1"
    assert by_key["two.onnx"].origin == f"added from {tmp_path / 'two.onnx'}"
    assert (by_key["two.onnx"].size, by_key["two.onnx"].pinned) == (4, False)
    assert by_key[""].arriving
    assert by_key["one.onnx"].used is not None
    assert model_files.listing(tmp_path / "nothing") == ()


async def test_what_is_added_while_the_worker_runs_is_found_verified_and_needs_no_fetch(
    tmp_path: Path,
) -> None:
    stored = cache(tmp_path / "c")
    mine = file(tmp_path, "mine.onnx", b"my model")
    added = model_files.add(tmp_path / "c", mine, room=100)
    assert not stored.has(added.sha256), "not before it was hashed"
    assert stored.changed()
    await stored.verify_added()
    assert stored.has(added.sha256)
    assert stored.recent(1) == (added.sha256,)
    assert not stored.changed()

    async def never(offset: int, target: PartialFile, progress: Progress) -> None:
        raise AssertionError("fetched")

    assert (await get_model(stored, model(b"my model"), never)).read_bytes() == b"my model"
    assert mine.read_bytes() == b"my model"
    assert mine.stat().st_mode & 0o200, "the user's file is as it was"


async def test_a_file_under_a_false_name_is_not_taken_up(tmp_path: Path) -> None:
    stored = cache(tmp_path)
    file(tmp_path, f"{'d' * 64}.model", b"something")
    assert stored.changed()
    await stored.verify_added()
    assert not stored.has("d" * 64)
    assert not (tmp_path / f"{'d' * 64}.model").exists()


async def test_what_is_removed_while_the_worker_runs_is_gone_for_it_too(tmp_path: Path) -> None:
    stored = cache(tmp_path)
    what = model(b"one")
    await get_model(stored, what, source(b"one"))
    model_files.remove(tmp_path, model_files.find(tmp_path, what.sha256[:8]))
    assert not stored.has(what.sha256)
    assert not stored.changed()
    assert stored.used_bytes == 0
    await get_model(stored, what, source(b"one"))
    assert stored.has(what.sha256)


async def test_what_a_run_uses_is_not_removed(tmp_path: Path) -> None:
    stored = cache(tmp_path)
    what = model(b"one")
    async with stored.using(what, source(b"one")) as path:
        with pytest.raises(ResourceError, match="in use by a run"):
            model_files.remove(tmp_path, model_files.find(tmp_path, "m.onnx"))
        assert path.read_bytes() == b"one"
    model_files.remove(tmp_path, model_files.find(tmp_path, "m.onnx"))
    assert model_files.listing(tmp_path) == ()


async def test_what_is_pinned_survives_and_when_all_is_pinned_there_is_no_room(tmp_path: Path) -> None:
    stored = cache(tmp_path, cap=7)
    one, two, three = (model(text, f"{text.decode()}.onnx") for text in (b"one", b"two", b"three"))
    await get_model(stored, one, source(b"one"))
    model_files.set_pin(tmp_path, model_files.find(tmp_path, "one.onnx"), True)
    await get_model(stored, two, source(b"two"))
    with pytest.raises(RunError, match="in use or pinned fill the cache"):
        await get_model(stored, three, source(b"three"))
    assert stored.has(one.sha256)
    assert stored.has(two.sha256)  # evicting it would not make room either
    model_files.set_pin(tmp_path, model_files.find(tmp_path, "one.onnx"), False)
    await get_model(stored, three, source(b"three"))
    assert not stored.has(one.sha256)


async def test_what_is_added_beyond_the_cap_sends_the_oldest_away(tmp_path: Path) -> None:
    stored = cache(tmp_path / "c", cap=10)
    await get_model(stored, model(b"oldest"), source(b"oldest"))
    added = model_files.add(tmp_path / "c", file(tmp_path, "new", b"newest"), room=10)
    assert stored.changed()
    await stored.verify_added()
    assert stored.recent(4) == (added.sha256,)


async def test_room_is_made_by_copies_and_links_alone_never_by_the_users_files(tmp_path: Path) -> None:
    theirs, stored = tmp_path / "theirs", tmp_path / "c"
    inside = theirs / "m.mlpackage" / "inside"
    inside.mkdir(parents=True)
    mine = [file(theirs, "m.onnx", b"mine"), file(inside, "model.bin", b"weights")]
    inside.chmod(0o750)
    before = [(path.read_bytes(), path.stat()) for path in mine]
    model_files.add(stored, mine[0], room=100_000)
    linked = model_files.add(stored, inside.parent, room=100_000).sha256
    (stored / f"{'a' * 64}.model").symlink_to(mine[0])
    (stored / f"{'b' * 64}.part").symlink_to(mine[0])
    (stored / f"{linked}.folder").symlink_to(inside.parent)
    (stored / f"{'c' * 64}.folder").symlink_to(inside.parent)
    await get_model(cache(stored, cap=10), model(b"0123456789"), source(b"0123456789"))
    assert [each.size for each in model_files.listing(stored)] == [10], "all else made room"
    assert not list(stored.glob("*.folder"))
    assert [(path.read_bytes(), path.stat()) for path in mine] == before
    assert inside.stat().st_mode & 0o777 == 0o750


def test_a_folder_is_added_as_the_bundle_that_tasks_name(tmp_path: Path) -> None:
    folder = tmp_path / "m.mlpackage"
    folder.mkdir()
    file(folder, "model.bin", b"weights")
    added = model_files.add(tmp_path / "c", folder, room=10_000)
    assert (tmp_path / "c" / f"{added.sha256}.model").read_bytes().startswith(b"sark bundle 1\n")
    assert added.name == "m.mlpackage"


def test_what_cannot_be_added_is_a_one_line_error_and_leaves_nothing(tmp_path: Path) -> None:
    stored = tmp_path / "c"
    with pytest.raises(ResourceError, match="No such file"):
        model_files.add(stored, tmp_path / "none.onnx", room=100)
    with pytest.raises(SettingsError, match="is empty"):
        model_files.add(stored, file(tmp_path, "empty", b""), room=100)
    with pytest.raises(ResourceError, match="does not fit: there is room for 3 B"):
        model_files.add(stored, file(tmp_path, "large", b"large"), room=3)
    assert list(stored.iterdir()) == []


def test_a_model_is_named_by_its_hash_or_its_name_and_never_by_a_guess(tmp_path: Path) -> None:
    for content in (b"one", b"two"):
        model_files.add(tmp_path / "c", file(tmp_path, "same.onnx", content), room=100)
    with pytest.raises(SettingsError, match="matches 2 models"):
        model_files.find(tmp_path / "c", "same.onnx")
    with pytest.raises(SettingsError, match="no model"):
        model_files.find(tmp_path / "c", "")
    with pytest.raises(SettingsError, match="no model"):
        model_files.find(tmp_path / "c", "../c")
    sha = hashlib.sha256(b"one").hexdigest()
    assert model_files.find(tmp_path / "c", sha[:6]).sha256 == sha
