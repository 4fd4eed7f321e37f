"""The short form: a small run of the real services, with a power cut at a few hundred places; and the losses that the model of a disk
allows.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import pytest

from swarm.base.durable import make_folder, remove_durably, write_durably
from tests.durability.__main__ import run
from tests.durability.disk import Disk, Loss, Tree
from tests.durability.journal import Operation, Step

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD and /proc are Linux's")
TASKS, EVERY = 4, 4
RENAMED = ("create", "write", "rename")


def steps(words: Iterable[str]) -> Iterable[Step]:
    """A file `new` that replaces the file `old`."""
    old, new, none = PurePosixPath("old"), PurePosixPath("new"), PurePosixPath()
    known = {
        "create": Step(Operation.CREATE, 1, 0, new, none, b""),
        "write": Step(Operation.WRITE, 1, 0, none, none, b"x" * 2000),
        "fsync": Step(Operation.SYNC_FILE, 1, 0, none, none, b""),
        "rename": Step(Operation.RENAME, 0, 0, new, old, b""),
        "folder": Step(Operation.SYNC_FOLDER, 0, 0, none, none, b""),
    }
    return [known[word] for word in words]


def left(words: Iterable[str], loss: Loss, seed: int = 1) -> Tree:
    disk = Disk()
    for step in steps(words):
        disk.do(step)
    return disk.after(loss, random.Random(seed))


@pytest.mark.parametrize(
    ("words", "loss", "expected"),
    [
        (RENAMED, Loss.LOST, {}),
        (RENAMED, Loss.KEPT, {"old": b"x" * 2000}),
        (RENAMED, Loss.NAMES, {"old": b""}),
        (RENAMED, Loss.BYTES, {}),
        (("create", "write", "fsync", "rename"), Loss.NAMES, {"old": b"x" * 2000}),
        (("create", "write", "fsync", "rename"), Loss.LOST, {}),
        (("create", "write", "rename", "folder"), Loss.LOST, {"old": b""}),
        (("create", "write", "fsync", "rename", "folder"), Loss.LOST, {"old": b"x" * 2000}),
    ],
)
def test_only_what_was_synced_is_sure_to_be_there(
    words: tuple[str, ...], loss: Loss, expected: dict[str, bytes]
) -> None:
    assert left(words, loss) == expected


def test_a_torn_write_leaves_some_sectors_of_it() -> None:
    contents = {tree.get("old") for seed in range(40) if (tree := left(RENAMED, Loss.TORN, seed))}
    assert {b"", b"x" * 2000} < contents
    assert any(content and b"\0" in content for content in contents)


def test_nothing_promised_is_lost_when_power_goes(tmp_path: Path) -> None:
    figures = run(tmp_path, "campaign", tasks=TASKS, seed=1, every=EVERY, enough=5)
    assert not figures.breaches, "\n".join(map(str, figures.breaches))
    assert figures.cuts > 200
    wanted = {
        "campaign",
        "intent",
        "result",
        "record",
        "incarnation",
        "epoch",
        "model",
        "pin",
        "revoked",
    }
    assert wanted <= set(figures.promises)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "wanted"),
    [
        ("adoption", {"credential", "led", "spooled", "campaign", "result", "manifest"}),
        ("restore", {"contents", "backup", "campaign", "result"}),
        ("api", {"claim", "answer", "token", "upload", "campaign", "run", "cancel"}),
        ("gate", {"identity", "incarnation", "admitted", "member", "revoked", "closed", "joined", "gates"}),
        ("experiment", {"version", "schedule", "due", "run", "finding", "accepted", "experiment"}),
    ],
)
def test_nothing_promised_is_lost_elsewhere_either(tmp_path: Path, scenario: str, wanted: set[str]) -> None:
    figures = run(tmp_path, scenario, tasks=8, seed=1, every=EVERY, enough=5)
    assert not figures.breaches, "\n".join(map(str, figures.breaches))
    assert wanted <= set(figures.promises)


def test_a_folder_and_those_above_it_are_made_once(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "file")


def test_what_is_removed_durably_may_be_gone_already(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_durably(path, b"1")
    remove_durably(path)
    remove_durably(path)
    assert not path.exists()
