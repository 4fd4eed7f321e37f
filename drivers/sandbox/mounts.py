"""What a shut-in process sees of the file system: its plan, and the mounts that make it.

`MountPlan` says it once; the mounts of the full tier and the Landlock rules of both tiers are made of it, here, by pure functions.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

from drivers.contract.base import MIB
from drivers.contract.boot import VARIABLE
from drivers.sandbox.landlock import DEVICE, READ, WRITE, WRITE_FILE

SYSTEM: Final = (
    *("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/nix/store", "/run/opengl-driver"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime"),
    *("/etc/OpenCL", "/etc/vulkan", "/etc/nvidia"),
)
"""Programs and libraries; nothing of /etc that names people, hosts or secrets."""
KERNEL: Final = ("/sys/devices", "/sys/class", "/sys/bus", "/sys/module", "/sys/fs/cgroup")
"""What a runtime reads of the processors, a measurement of the host's state, a driver of its GPU."""
OF_NETWORK: Final = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
)
DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
GPU_DEVICES: Final = ("nvidia", "dri", "kfd", "dxg", "mali", "accel")
"""Beginnings of the names in /dev that belong to accelerators."""
PROC_SHUT: Final = ("sys", "irq", "bus", "fs", "sysrq-trigger")
"""Of /proc: what the superuser, who is one by number also without any right, could write to."""
ROOT_BYTES: Final = 4 * MIB


@dataclass(frozen=True, slots=True)
class MountPlan:
    """One launch's view. Paths are absolute and the same inside as outside."""

    folder: str
    """Its own, the only one it may write to."""
    model: str
    """A file or folder; empty: none."""
    reads: tuple[str, ...]
    devices: tuple[str, ...]
    room_bytes: int
    """Of its folder, all files together."""
    network: bool = False
    gpu: bool = False


def code_folders(frozen: bool = bool(getattr(sys, "frozen", False))) -> tuple[str, ...]:
    """Where this program, its interpreter, packages and libraries are. `frozen`: modules are read from the program's own file."""
    program = os.path.dirname(sys.executable) if frozen else str(Path(__file__).parents[2])  # noqa: PTH120
    places = [sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path, *site.getsitepackages(), program]
    named = [os.environ.get("LD_LIBRARY_PATH", ""), os.environ.get(VARIABLE, "")]
    libraries = os.pathsep.join(named).split(os.pathsep)
    return tuple(dict.fromkeys(place for place in (*places, *libraries) if place.startswith("/")))


def plan(
    folder: str,
    model: str,
    room_bytes: int,
    *,
    code: Iterable[str],
    in_dev: Iterable[str],
    network: bool = False,
    gpu: bool = False,
) -> MountPlan:
    """What a launch needs. `code`: see `code_folders`; `in_dev`: the names in /dev."""
    accelerators = [f"/dev/{name}" for name in sorted(in_dev) if gpu and name.startswith(GPU_DEVICES)]
    reads = (*SYSTEM, *KERNEL, *(OF_NETWORK if network else ()), *code)
    return MountPlan(folder, model, tuple(reads), (*DEVICES, *accelerators), room_bytes, network, gpu)


def landlock_rules(wanted: MountPlan, *, in_view: bool) -> tuple[tuple[str, int], ...]:
    """(path, rights) for `landlock.restrict`; `in_view`: there is nothing but the plan to be read, so that one rule says it.

    Of /proc the rest is the kernel's affair: Landlock hides other processes' secrets.
    """
    paths = ("/",) if in_view else (*wanted.reads, "/proc", wanted.model)
    writes = ((wanted.folder, WRITE), ("/proc/self", READ | WRITE_FILE))
    return (*((path, READ) for path in paths if path), *writes, *((path, DEVICE) for path in wanted.devices))


class MountAction(StrEnum):
    """One step of making the view."""

    FOLDER = "folder"
    LINK = "link"
    FILE = "file"
    BIND = "bind"
    DEVICE = "device"
    PROC = "proc"
    ROOM = "room"


@dataclass(frozen=True, slots=True)
class MountStep:
    """`path` is made below the new root; `source` is what a link says or what is bound."""

    act: MountAction
    path: str
    source: str = ""


class MountedView:
    """A view as it grows: what is there already need not be made again."""

    def __init__(self, kind: Callable[[str], str], before: MountedView | None = None) -> None:
        self.kind = kind
        self.steps: list[MountStep] = list(before.steps) if before else []
        self.there: set[str] = set(before.there) if before else {"", "/"}
        self.bound: set[str] = set(before.bound) if before else set()

    def within(self, path: str) -> bool:
        """Whether it lies in something that is bound."""
        while len(path) > 1:
            if path in self.bound:
                return True
            path = path.rpartition("/")[0]
        return False

    def folder(self, path: str) -> None:
        """A folder with those above it."""
        if path in self.there or self.within(path):
            return
        self.folder(path.rpartition("/")[0])
        self.there.add(path)
        self.steps.append(MountStep(MountAction.FOLDER, path))

    def bind(self, path: str, act: MountAction) -> None:
        """What is there, at its own place."""
        what = self.kind(path)
        if not what or path in self.there or self.within(path):
            return
        self.folder(path.rpartition("/")[0])
        if what.startswith(">") and path in SYSTEM:  # such as /lib, which is usr/lib
            self.link(path, what[1:])
            return
        if what.startswith(">"):
            what = self.kind(os.path.realpath(path))
        self.there.add(path)
        self.bound.add(path)
        self.steps.append(MountStep(MountAction.FOLDER if what == "folder" else MountAction.FILE, path))
        self.steps.append(MountStep(act, path, path))

    def link(self, path: str, to: str) -> None:
        """A symbolic link, where nothing else is."""
        if path not in self.there:
            self.there.add(path)
            self.steps.append(MountStep(MountAction.LINK, path, to))


def base(reads: Iterable[str], devices: Iterable[str], kind: Callable[[str], str]) -> MountedView:
    """What the launches of one driver have in common."""
    made = MountedView(kind)
    for path in sorted(set(reads) - {"", "/"}):
        made.bind(path, MountAction.BIND)
    for path in sorted(devices):
        made.bind(path, MountAction.DEVICE)
    made.folder("/dev")
    made.folder("/proc")
    made.steps.append(MountStep(MountAction.PROC, "/proc"))
    return made


@cache
def kept_base(reads: tuple[str, ...], devices: tuple[str, ...]) -> MountedView:
    """`base` of this file system; a zygote makes it once, and each launch forked from it has it."""
    return base(reads, devices, kind)


def steps(wanted: MountPlan, begun: MountedView) -> tuple[MountStep, ...]:
    """The steps in order. `begun` is `base` of the plan."""
    made = MountedView(begun.kind, begun)
    if wanted.model:
        made.bind(wanted.model, MountAction.BIND)
    made.folder(wanted.folder)
    made.steps.append(MountStep(MountAction.ROOM, wanted.folder))
    made.link("/dev/shm", wanted.folder)  # noqa: S108
    made.link("/tmp", wanted.folder)  # noqa: S108
    return tuple(made.steps)


def kind(path: str) -> str:
    """`folder`, `file`, empty for nothing, or `>` and where a symbolic link leads."""
    if os.path.islink(path):  # noqa: PTH114
        return f">{os.readlink(path)}"  # noqa: PTH115
    if os.path.isdir(path):  # noqa: PTH112
        return "folder"
    return "file" if os.path.exists(path) else ""  # noqa: PTH110
