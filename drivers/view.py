"""What a shut-in process sees of the file system: its plan, and the mounts that make it.

`Plan` says it once; the mounts of the full tier and the Landlock rules of both tiers are made of it, here, by pure functions.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final

from drivers import native
from drivers.base import MIB
from drivers.landlock import DEVICE, READ, WRITE, WRITE_FILE

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
class Plan:
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


def code_folders() -> tuple[str, ...]:
    """Where this interpreter, its packages and their libraries are."""
    places = [sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path, *site.getsitepackages()]
    named = [os.environ.get("LD_LIBRARY_PATH", ""), os.environ.get(native.VARIABLE, "")]
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
) -> Plan:
    """What a launch needs. `code`: see `code_folders`; `in_dev`: the names in /dev."""
    accelerators = [f"/dev/{name}" for name in sorted(in_dev) if gpu and name.startswith(GPU_DEVICES)]
    reads = (*SYSTEM, *KERNEL, *(OF_NETWORK if network else ()), *code)
    return Plan(folder, model, tuple(reads), (*DEVICES, *accelerators), room_bytes, network, gpu)


def landlock_rules(wanted: Plan) -> tuple[tuple[str, int], ...]:
    """(path, rights) for `landlock.restrict`. Of /proc the rest is the kernel's affair: Landlock hides other processes' secrets."""
    reads = [(path, READ) for path in (*wanted.reads, "/proc", wanted.model) if path]
    writes = [(wanted.folder, WRITE), ("/proc/self", READ | WRITE_FILE)]
    return (*reads, *writes, *((path, DEVICE) for path in wanted.devices))


class Act(StrEnum):
    """One step of making the view."""

    FOLDER = "folder"
    LINK = "link"
    FILE = "file"
    BIND = "bind"
    DEVICE = "device"
    PROC = "proc"
    ROOM = "room"


@dataclass(frozen=True, slots=True)
class Step:
    """`path` is made below the new root; `source` is what a link says or what is bound."""

    act: Act
    path: str
    source: str = ""


def steps(wanted: Plan, kind: Callable[[str], str]) -> tuple[Step, ...]:
    """The steps in order. `kind` of a path: `folder`, `file`, empty for nothing, or `>` and where a symbolic link leads."""
    made: list[Step] = []
    there: set[str] = {"/"}
    bound: list[str] = []

    def folders(path: str) -> None:
        for parent in reversed(PurePosixPath(path).parents):
            if str(parent) not in there and not _within(str(parent), bound):
                there.add(str(parent))
                made.append(Step(Act.FOLDER, str(parent)))

    def bind(path: str, act: Act) -> None:
        what = kind(path)
        if not what or _within(path, bound) or path in there:
            return
        folders(path)
        there.add(path)
        if what.startswith(">") and path in SYSTEM:  # such as /lib, which is usr/lib
            made.append(Step(Act.LINK, path, what[1:]))
            return
        if what.startswith(">"):
            what = kind(os.path.realpath(path))
        made.append(Step(Act.FOLDER if what == "folder" else Act.FILE, path))
        made.append(Step(act, path, path))
        bound.append(path)

    for path in sorted({*wanted.reads, wanted.model} - {"", "/", wanted.folder}):
        bind(path, Act.BIND)
    for path in sorted(wanted.devices):
        bind(path, Act.DEVICE)
    made += [Step(Act.FOLDER, "/proc"), Step(Act.PROC, "/proc")]
    folders(f"{wanted.folder}/.")
    made.append(Step(Act.ROOM, wanted.folder))
    made.append(Step(Act.LINK, "/dev/shm", wanted.folder))  # noqa: S108
    if "/tmp" not in there:  # noqa: S108
        made.append(Step(Act.LINK, "/tmp", wanted.folder))  # noqa: S108
    return tuple(made)


def _within(path: str, bound: Iterable[str]) -> bool:
    return any(path == one or path.startswith(f"{one}/") for one in bound)


def kind(path: str) -> str:
    """See `steps`, for this file system."""
    if os.path.islink(path):  # noqa: PTH114
        return f">{os.readlink(path)}"  # noqa: PTH115
    if os.path.isdir(path):  # noqa: PTH112
        return "folder"
    return "file" if os.path.exists(path) else ""  # noqa: PTH110
