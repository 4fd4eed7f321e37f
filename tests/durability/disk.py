"""A disk as POSIX promises it, and what a power cut may leave of it.

Bytes are safe after fsync of their file, a name after fsync of its folder. Everything else may be lost, torn or reordered:

    lost     everything unsynced is gone                    kept     everything is there, as after kill -9
    names    names are ahead of bytes: renamed, but empty   bytes    bytes are ahead of names
    torn     a seed draws which names and which sectors are there
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Final

from tests.durability.journal import Operation, Step

SECTOR: Final = 512
NOT_MODELLED: Final = "-shm"
"""SQLite writes this file through a mapping, and rebuilds it from the -wal after a restart."""


class Loss(StrEnum):
    """What a power cut does to unsynced data."""

    LOST = "lost"
    KEPT = "kept"
    NAMES = "names"
    BYTES = "bytes"
    TORN = "torn"


@dataclass(eq=False, slots=True)
class FileNode:
    """A file's bytes now and as of its last fsync, and the writes in between: (offset, bytes), or (size, None) for a truncation."""

    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    _whole: bytes | None = b""
    """A copy of `content`, if made since the last change. So each state of a file is one object, whose hash is computed once."""

    def apply(self, at: int, data: bytes | None) -> None:
        _apply(self.content, at, data)
        self.pending.append((at, data))
        self._whole = None

    def sync(self) -> None:
        if self.pending:
            self.synced = self.whole()
            self.pending.clear()

    def whole(self) -> bytes:
        if self._whole is None:
            self._whole = bytes(self.content)
        return self._whole

    def after(self, loss: Loss, rng: random.Random) -> bytes:
        if loss in (Loss.KEPT, Loss.BYTES) or not self.pending:
            return self.whole()
        if loss in (Loss.LOST, Loss.NAMES):
            return self.synced
        left = bytearray(self.synced)
        for at, data in self.pending:
            if data is None:
                if rng.random() < 0.5:
                    _apply(left, at, None)
                continue
            for first, part in _sectors(at, data, whole=rng.random()):
                if rng.random() < 0.7:
                    _apply(left, first, part)
        return bytes(left)


@dataclass(eq=False, slots=True)
class FolderNode:
    """A folder's names now and as of its last fsync."""

    names: dict[str, Node] = field(default_factory=dict)
    synced: dict[str, Node] = field(default_factory=dict)
    pending: list[dict[str, Node | None]] = field(default_factory=list)
    """Changes since then, each atomic: name → node; None: no longer there."""

    def change(self, names: dict[str, Node | None]) -> None:
        _rename(self.names, names)
        self.pending.append(names)

    def sync(self) -> None:
        self.synced = dict(self.names)
        self.pending.clear()

    def after(self, loss: Loss, rng: random.Random) -> dict[str, Node]:
        if loss in (Loss.KEPT, Loss.NAMES) or not self.pending:
            return self.names
        if loss in (Loss.LOST, Loss.BYTES):
            return self.synced
        left = dict(self.synced)
        for change in self.pending:
            if rng.random() < 0.5:
                _rename(left, change)
        return left


Node = FileNode | FolderNode
Tree = dict[str, bytes]
"""Path → content."""


class Disk:
    """The recorded folder, which itself is safe."""

    def __init__(self) -> None:
        self.root = FolderNode()
        self._by_inode: dict[int, FileNode] = {}

    def do(self, step: Step) -> bool:
        """Carry out a step. Returns whether a power cut right after it is of interest."""
        match step.operation:
            case Operation.CREATE:
                file = self._by_inode[step.inode] = FileNode()
                self._folder(step.path.parent).change({step.path.name: file})
            case Operation.WRITE:
                self._by_inode[step.inode].apply(step.number, step.data)
            case Operation.TRUNCATE:
                self._by_inode[step.inode].apply(step.number, None)
            case Operation.SYNC_FILE:
                self._by_inode[step.inode].sync()
            case Operation.SYNC_FOLDER:
                self._folder(step.path).sync()
            case Operation.MAKE_FOLDER:
                self._folder(step.path.parent).change({step.path.name: FolderNode()})
            case Operation.REMOVE:
                self._folder(step.path.parent).change({step.path.name: None})
            case Operation.LINK:
                self._folder(step.other.parent).change({step.other.name: self._node(step.path)})
            case Operation.RENAME:
                self._move(step.path, step.other)
        return True

    def _move(self, old: PurePosixPath, new: PurePosixPath) -> None:
        node, source, target = self._node(old), self._folder(old.parent), self._folder(new.parent)
        if source is target:
            source.change({old.name: None, new.name: node})
        else:
            target.change({new.name: node})
            source.change({old.name: None})

    def _node(self, path: PurePosixPath) -> Node:
        node: Node = self.root
        for part in path.parts:
            assert isinstance(node, FolderNode)
            node = node.names[part]
        return node

    def _folder(self, path: PurePosixPath) -> FolderNode:
        node = self._node(path)
        assert isinstance(node, FolderNode)
        return node

    def file(self, path: str) -> FileNode | None:
        """The file that has this name now."""
        try:
            node = self._node(PurePosixPath(path))
        except KeyError:
            return None
        return node if isinstance(node, FileNode) else None

    def after(self, loss: Loss, rng: random.Random) -> Tree:
        """The tree when power is back."""
        return dict(_walk(self.root, "", loss, rng))


def _walk(folder: FolderNode, below: str, loss: Loss, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    names = folder.after(loss, rng)
    for name in sorted(names):
        node, path = names[name], f"{below}{name}"
        if isinstance(node, FolderNode):
            yield f"{path}/", b""
            yield from _walk(node, f"{path}/", loss, rng)
        elif not name.endswith(NOT_MODELLED):
            yield path, node.after(loss, rng)


def write_tree(tree: Tree, folder: Path) -> None:
    """Write the tree to a real, empty folder."""
    for path, content in tree.items():
        if path.endswith("/"):
            (folder / path).mkdir(mode=0o700, parents=True, exist_ok=True)
        else:
            (folder / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
            (folder / path).chmod(0o600)


def read_tree(folder: Path) -> Tree:
    """The content of a real folder."""
    tree: Tree = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir():
            tree[f"{name}/"] = b""
        elif not name.endswith(NOT_MODELLED):
            tree[name] = path.read_bytes()
    return tree


def _apply(content: bytearray, at: int, data: bytes | None) -> None:
    if data is None:
        if at < len(content):
            del content[at:]
        else:
            content.extend(bytes(at - len(content)))
        return
    if at > len(content):
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data


def _rename(names: dict[str, Node], change: dict[str, Node | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _sectors(at: int, data: bytes, whole: float) -> Iterator[tuple[int, bytes]]:
    """Split a write into sectors, or leave it in one piece."""
    if whole < 0.5:
        yield at, data
        return
    first = 0
    while first < len(data):
        size = SECTOR - (at + first) % SECTOR
        yield at + first, data[first : first + size]
        first += size
