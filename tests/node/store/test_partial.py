"""A model that arrives in pieces: what a kill leaves, which of it is believed, and who may download it meanwhile."""

from __future__ import annotations

import errno
import hashlib
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from node.store import model_files
from node.store.cache import ModelCache, Progress
from node.store.partial import PartialFile
from protocol.errors import RunError
from protocol.messages.blobs import PIECE_SIZE
from protocol.values.task import Model
from protocol.words import Reason
from swarm.base.threads import DISK
from swarm.blobs.pieces import hashes_of, span
from tests.node.conftest import get_model

CONTENT = random.Random(5).randbytes(3 * PIECE_SIZE + 777)
SHA = hashlib.sha256(CONTENT).hexdigest()
MODEL = Model(name="m.onnx", sha256=SHA, size=len(CONTENT))
HASHES = hashes_of(CONTENT)


def piece(index: int) -> bytearray:
    offset, length = span(index, len(CONTENT))
    return bytearray(CONTENT[offset : offset + length])


def begun(folder: Path, *indexes: int, principal: str = "ann") -> Path:
    """A download that was killed once these pieces were on disk."""
    path = folder / f"{SHA}.part"
    half = PartialFile(path, len(CONTENT))
    half.begin(principal)
    half.know(HASHES)
    for index in indexes:
        assert half.put(index, piece(index), trusted=False)
    half.close()
    return path


def test_what_a_kill_left_is_carried_on_and_the_whole_is_right(tmp_path: Path) -> None:
    half = PartialFile(begun(tmp_path, 2, 0), len(CONTENT))
    assert half.size == 2 * PIECE_SIZE
    half.begin("ann")
    assert half.missing() == {1, 3}
    assert half.know(HASHES) == set()
    assert half.put(3, piece(3), trusted=False)
    assert half.put(1, piece(1), trusted=False)
    assert half.digest() == SHA
    half.keep(tmp_path / f"{SHA}.model")
    assert (tmp_path / f"{SHA}.model").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == [f"{SHA}.model"]


KILLED = """
import os, signal, sys
from pathlib import Path
from node.store.partial import PartialFile
content = Path(sys.argv[1]).read_bytes()
half = PartialFile(Path(sys.argv[2]), len(content))
half.begin("ann")
for index in (2, 0):
    half.put(index, bytearray(content[index * 4194304 : (index + 1) * 4194304]), trusted=index == 0)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal")
def test_a_process_that_is_killed_leaves_what_it_had(tmp_path: Path) -> None:
    source, path = tmp_path / "model", tmp_path / f"{SHA}.part"
    source.write_bytes(CONTENT)
    done = subprocess.run([sys.executable, "-c", KILLED, str(source), str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    half = PartialFile(path, len(CONTENT))
    half.begin("ann")
    assert half.missing() == {1, 3}
    assert half.principal == "ann"
    half.close()


def test_a_piece_that_was_damaged_on_the_disk_is_not_believed(tmp_path: Path) -> None:
    path = begun(tmp_path, 0, 1)
    with path.open("r+b") as file:
        file.seek(PIECE_SIZE + 5)
        file.write(b"evil")
    half = PartialFile(path, len(CONTENT))
    half.begin("ann")
    assert half.missing() == {1, 2, 3}
    half.close()


def test_a_trusted_piece_is_not_hashed_and_not_shared_before_it_is_verified(
    tmp_path: Path,
) -> None:
    half = PartialFile(tmp_path / f"{SHA}.part", len(CONTENT))
    half.begin("ann")
    assert half.put(0, bytearray(PIECE_SIZE), trusted=True), "the hash of the whole finds it"
    assert half.know(HASHES) == set()
    for index in (1, 2, 3):
        assert half.put(index, piece(index), trusted=True)
    assert half.held() == set()
    assert not half.has(1)
    assert half.digest() != SHA
    assert half.verify() == {0}
    assert half.held() == {1, 2, 3}
    assert half.missing() == {0}
    assert half.put(0, piece(0), trusted=False)
    assert half.digest() == SHA
    half.close()


@pytest.mark.parametrize("damaged", [False, True])
def test_a_trusted_piece_is_hashed_by_the_next_life(tmp_path: Path, damaged: bool) -> None:
    path = tmp_path / f"{SHA}.part"
    half = PartialFile(path, len(CONTENT))
    half.begin("ann")
    half.put(0, piece(0), trusted=True)
    half.put(1, bytearray(PIECE_SIZE) if damaged else piece(1), trusted=True)
    half.close()
    half = PartialFile(path, len(CONTENT))
    half.begin("ann")
    assert half.missing() == {2, 3}
    assert half.know(HASHES) == ({1} if damaged else set())
    for index in sorted(half.missing()):
        half.put(index, piece(index), trusted=True)
    assert half.digest() == SHA
    half.close()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:-10],
        lambda text: text + "1 zz\n999999 " + "0" * 64 + "\nx\n",
        lambda text: "{}\n" + text,
        lambda text: "",
    ],
    ids=["cut", "junk", "no head", "empty"],
)
def test_a_list_that_does_not_read_well_costs_pieces_and_nothing_else(
    tmp_path: Path, spoil: Callable[[str], str]
) -> None:
    path = begun(tmp_path, 0, 1)
    result = path.with_suffix(".pieces")
    result.write_text(spoil(result.read_text()))
    half = PartialFile(path, len(CONTENT))
    half.begin("ann")
    for index in sorted(half.missing()):
        half.put(index, piece(index), trusted=False)
    assert half.digest() == SHA
    half.close()


def test_a_wrong_piece_is_refused_and_one_that_came_before_the_hashes_is_found_out(tmp_path: Path) -> None:
    half = PartialFile(tmp_path / f"{SHA}.part", len(CONTENT))
    half.begin("ann")
    assert half.put(0, bytearray(PIECE_SIZE), trusted=False), "nothing is known of it yet"
    assert not half.has(0), "so nobody else gets it"
    assert half.know(HASHES) == {0}
    assert not half.put(0, bytearray(PIECE_SIZE), trusted=False)
    for index in range(4):
        assert half.put(index, piece(index), trusted=False)
    assert half.has(0)
    assert half.digest() == SHA
    half.close()


def test_what_was_brought_for_one_is_not_shared_in_anothers_name(tmp_path: Path) -> None:
    path = begun(tmp_path, 0, principal="ann")
    for principal, shared in (("ann", "ann"), ("bob", None), ("ann", None)):
        half = PartialFile(path, len(CONTENT))
        half.begin(principal)
        assert half.principal == shared
        half.close()


def test_a_half_in_order_becomes_pieces_and_the_other_way_round(tmp_path: Path) -> None:
    path = tmp_path / f"{SHA}.part"
    path.write_bytes(CONTENT[: PIECE_SIZE + 100])
    half = PartialFile(path, len(CONTENT))
    half.begin("ann")
    assert half.missing() == {1, 2, 3}
    assert half.principal is None, "who brought it is not known"
    half.put(1, piece(1), trusted=False)
    half.put(3, piece(3), trusted=False)
    assert half.offset == 2 * PIECE_SIZE
    half(bytearray(CONTENT[2 * PIECE_SIZE :]))
    assert half.digest() == SHA
    half.close()
    assert not path.with_suffix(".pieces").exists()


def test_a_list_without_its_bytes_is_worth_nothing(tmp_path: Path) -> None:
    begun(tmp_path, 0, 1).unlink()
    half = PartialFile(tmp_path / f"{SHA}.part", len(CONTENT))
    half.begin("ann")
    assert half.missing() == {0, 1, 2, 3}
    half.close()


class Bringing:
    """A source of pieces that hangs after `most` pieces."""

    def __init__(self, most: int = 99) -> None:
        self.most = most
        self.brought: list[int] = []

    async def __call__(self, offset: int, target: PartialFile, progress: Progress) -> None:
        target.begin("ann")
        target.know(HASHES)
        for index in sorted(target.missing(), reverse=True):
            if len(self.brought) >= self.most:
                await trio.sleep_forever()
            await trio.to_thread.run_sync(partial(target.put, index, piece(index), trusted=False))
            self.brought.append(index)


async def test_ten_tasks_share_one_download_which_the_next_life_carries_on(tmp_path: Path) -> None:
    first = Bringing(most=2)
    with trio.move_on_after(0.5):
        await get_model(ModelCache(tmp_path, 10**9, free=lambda path: 10**12), MODEL, first)
    assert first.brought == [3, 2]
    cache, second = ModelCache(tmp_path, 10**9, free=lambda path: 10**12), Bringing()
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(get_model, cache, MODEL, second)
    assert second.brought == [1, 0]
    assert cache.has(SHA)
    assert cache.fetched_for(SHA) == "ann"


async def test_pieces_that_come_to_something_else_are_thrown_away(tmp_path: Path) -> None:
    other = Model(name="m", sha256="a" * 64, size=len(CONTENT))
    with pytest.raises(RunError) as error:
        await get_model(ModelCache(tmp_path, 10**9, free=lambda path: 10**12), other, Bringing())
    assert error.value.reason is Reason.WRONG_HASH
    assert model_files.listing(tmp_path) == ()
    assert not (tmp_path / f"{other.sha256}.pieces").exists()


async def test_a_disk_that_fills_up_ends_in_a_clear_error_and_leaves_nothing(tmp_path: Path) -> None:
    async def bring(offset: int, target: PartialFile, progress: Progress) -> None:
        target.begin("ann")
        await DISK.run(partial(target.put, 0, piece(0), trusted=False))
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(RunError, match="is full") as error:
        await get_model(ModelCache(tmp_path, 10**9, free=lambda path: 10**12), MODEL, bring)
    assert error.value.reason is Reason.DISK_FULL
    assert model_files.listing(tmp_path) == ()
    assert not (tmp_path / f"{SHA}.pieces").exists()
