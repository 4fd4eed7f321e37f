"""Cuts the power at the operations of a recorded run, and checks the remaining files against every promise made before the cut."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.durability.disk import Disk, Loss, Tree, read_tree
from tests.durability.facts import AT_LEAST, GROUPS, ONE_OF, SET_ASIDE, Facts, Reader, group_of
from tests.durability.journal import Operation, Step
from tests.durability.promises import EVERY, FILE, Promise

IN_GROUPS: Final = {
    "store": "campaign epoch cancel intent started result contents experiment version schedule due run finding accepted",
    "spool": "spooled led",
    "uploads": "upload",
    "trust": "listed pinned refuted",
    "tokens": "credential",
    "pools": "pool tickets closed admitted revoked joined member list",
    "server": "token",
    "answers": "claim answer",
    "gates": "gates",
    "backup": "backup",
    "keys": "identity",
    "models": "model pin",
    "outbox": "record",
    "manifests": "manifest",
    "incarnation": "incarnation",
    "paused": "paused",
}
KINDS: Final = {kind: group for group, kinds in IN_GROUPS.items() for kind in kinds.split()}
"""Kind of promise → the group of files that holds it."""


@dataclass(frozen=True, slots=True)
class Breach:
    """A promise that a power cut breaks, or files that cannot be read after it."""

    cut: int
    """The operation after which the power was cut."""
    loss: Loss
    home: str
    group: str
    what: str

    def __str__(self) -> str:
        return f"after operation {self.cut} ({self.loss}): {self.home}, {self.group}: {self.what}"


@dataclass
class Figures:
    """Totals of a replay."""

    operations: int = 0
    cuts: int = 0
    """Operations on the homes' files after which the power was cut."""
    between: int = 0
    """Further cuts, after promises that no such operation separates from the last cut."""
    states: int = 0
    """Remaining disks: several for each cut."""
    checks: int = 0
    """Promises that were checked against one of these disks."""
    promises: Counter[str] = field(default_factory=Counter)
    breaches: list[Breach] = field(default_factory=list)
    """The first breach of each kind."""
    seen: set[str] = field(default_factory=set)

    def add(self, other: Figures) -> None:
        for name in ("operations", "cuts", "between", "states", "checks"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.promises += other.promises
        self.breaches += other.breaches


class Promised:
    """What has been promised so far, by home and group of files."""

    def __init__(self) -> None:
        self.live: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        self.number = 0

    def take(self, line: bytes) -> Promise:
        made = Promise(*json.loads(line))
        kind = self.live.setdefault((made.home, KINDS[made.kind]), {}).setdefault(made.kind, {})
        if made.ends and made.key == EVERY:
            kind.clear()
        elif made.ends:
            kind.pop(made.key, None)
        elif made.kind not in AT_LEAST or made.value > kind.get(made.key, -1):
            kind[made.key] = made.value
        self.number += 1
        return made


def replay(
    steps: Iterable[Step],
    folder: Path,
    cut_here: Callable[[int], Sequence[Loss]],
    *,
    seed: int = 1,
    enough: int = 20,
    final: Path | None = None,
) -> Figures:
    """`cut_here`: the losses to try after that many operations; `enough`: the number of breaches after which it ends; `final`: the recorded
    folder, which the model of the disk has to equal at the end, byte for byte.
    """
    disk, promised, figures, rng = Disk(), Promised(), Figures(), random.Random(seed)
    reader, checked = Reader(folder), _Checked()
    promises_inode, rest = -1, b""
    for step in steps:
        if step.operation is Operation.CREATE and str(step.path) == FILE:
            promises_inode = step.inode
        disk.do(step)
        is_promise = step.inode == promises_inode and step.operation in (Operation.CREATE, Operation.WRITE)
        if is_promise and step.operation is Operation.WRITE:
            *lines, rest = (rest + step.data).split(b"\n")
            for line in lines:
                made = promised.take(line)
                figures.promises[made.kind] += not made.ends
        figures.operations += 1
        losses = cut_here(figures.operations)
        if losses and is_promise:
            figures.between += 1
        elif losses:
            figures.cuts += 1
        for loss in losses:
            figures.states += 1
            _check(disk.after(loss, rng), loss, promised, reader, checked, figures)
        if len(figures.breaches) >= enough:
            return figures
    if final is not None:
        left, real = disk.after(Loss.KEPT, rng), read_tree(final)
        wrong = sorted(path for path in {*left, *real} if left.get(path) != real.get(path))
        if wrong:
            raise AssertionError(f"the recorded run has written what the library did not see: {wrong[:5]}")
    return figures


class _Checked:
    """Promises that were already checked against files, because the same files give the same answer again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], int] = {}

    def needed(self, home: str, group: str, digest: int, number: int) -> bool:
        key = (home, group, digest)
        needed = self._known.get(key) != number
        self._known[key] = number
        return needed


def _check(
    tree: Tree, loss: Loss, promised: Promised, reader: Reader, checked: _Checked, figures: Figures
) -> None:
    by_group: dict[tuple[str, str], Tree] = {key: {} for key in promised.live}
    for path, content in tree.items():
        home, _, below = path.partition("/")
        group = group_of(below)
        if group is not None:
            by_group.setdefault((home, group), {})[below] = content
    for (home, group), files in by_group.items():
        live = promised.live.get((home, group), {})
        figures.checks += sum(map(len, live.values()))
        digest, facts, why = reader.facts(group, files)
        if not checked.needed(home, group, digest, promised.number):
            continue
        broken = [why] if why else list(_broken(live, facts))
        if loss is not Loss.TORN:  # a torn disk may have lost the record's head before the record was removed
            broken += [f"{name}: set aside as broken" for name in facts.get(SET_ASIDE, ())]
        for what in broken:
            if what not in figures.seen:
                figures.seen.add(what)
                figures.breaches.append(Breach(figures.operations, loss, home, group, what))


def _broken(live: dict[str, dict[str, Any]], facts: Facts) -> Iterable[str]:
    for kind, promises in live.items():
        known = facts.get(kind, {})
        if kind in AT_LEAST:
            wrong = [key for key, value in promises.items() if not known.get(key, -1) >= value]
        elif kind in ONE_OF:
            wrong = [key for key, values in promises.items() if known.get(key, []) not in values]
        elif promises.items() <= _plain(known).items() if _hashable(promises) else False:
            continue
        else:
            wrong = [key for key, value in promises.items() if not _has(known, key, value)]
        for key in wrong:
            yield f"{kind} {key}: {promises[key]!r} was promised, {_get(known, key)!r} is there"


def _has(known: Any, key: str, value: Any) -> bool:
    try:
        return bool(known[key] == value)
    except KeyError:
        return False


def _get(known: Any, key: str) -> Any:
    try:
        return known[key]
    except KeyError:
        return "nothing"


def _plain(known: Any) -> dict[str, Any]:
    return dict(known)


def _hashable(promises: dict[str, Any]) -> bool:
    return not any(isinstance(value, list | dict) for value in promises.values())


assert set(KINDS.values()) == set(GROUPS)
