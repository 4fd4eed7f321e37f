"""What a sandboxed process sees of the file system. `MountPlan` says it once; the mounts of the full tier and the Landlock rules of both
tiers are derived from it.
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
"""Read by runtimes (processors), measurements (the host's state) and GPU drivers."""
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
"""Prefixes of accelerators' names in /dev."""
PROC_READ_ONLY: Final = ("sys", "irq", "bus", "fs", "sysrq-trigger")
"""Of /proc: what uid 0 could write to even without capabilities."""
ROOT_BYTES: Final = 4 * MIB


@dataclass(frozen=True, slots=True)
class MountPlan:
    """One launch's view. Paths are absolute and the same inside as outside."""

    folder: str
    """The only one it may write to."""
    model: str
    """A file or folder; empty: none."""
    reads: tuple[str, ...]
    devices: tuple[str, ...]
    size_bytes: int
    """Limit of all files in the folder together."""
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
    size_bytes: int,
    *,
    code: Iterable[str],
    in_dev: Iterable[str],
    network: bool = False,
    gpu: bool = False,
) -> MountPlan:
    """What a launch needs. `code`: see `code_folders`; `in_dev`: the names in /dev."""
    gpus = [f"/dev/{name}" for name in sorted(in_dev) if gpu and name.startswith(GPU_DEVICES)]
    reads = (*SYSTEM, *KERNEL, *(OF_NETWORK if network else ()), *code)
    return MountPlan(folder, model, tuple(reads), (*DEVICES, *gpus), size_bytes, network, gpu)


def landlock_rules(plan: MountPlan, *, in_view: bool) -> tuple[tuple[str, int], ...]:
    """(path, rights) for `landlock.restrict`. `in_view`: nothing but the plan is mounted, so that one rule is enough."""
    paths = ("/",) if in_view else (*plan.reads, "/proc", plan.model)
    writes = ((plan.folder, WRITE), ("/proc/self", READ | WRITE_FILE))
    return (*((path, READ) for path in paths if path), *writes, *((path, DEVICE) for path in plan.devices))


class MountAction(StrEnum):
    FOLDER = "folder"
    LINK = "link"
    FILE = "file"
    BIND = "bind"
    DEVICE = "device"
    PROC = "proc"
    TMPFS = "tmpfs"


@dataclass(frozen=True, slots=True)
class MountStep:
    """`path`: below the new root. `source`: a link's target, or what is bound."""

    action: MountAction
    path: str
    source: str = ""


class ViewBuilder:
    """Collects the steps of a view, each path once."""

    def __init__(self, kind: Callable[[str], str], base: ViewBuilder | None = None) -> None:
        self.kind = kind
        self.steps: list[MountStep] = list(base.steps) if base else []
        self.made: set[str] = set(base.made) if base else {"", "/"}
        self.bound: set[str] = set(base.bound) if base else set()

    def within(self, path: str) -> bool:
        while len(path) > 1:
            if path in self.bound:
                return True
            path = path.rpartition("/")[0]
        return False

    def folder(self, path: str) -> None:
        if path in self.made or self.within(path):
            return
        self.folder(path.rpartition("/")[0])
        self.made.add(path)
        self.steps.append(MountStep(MountAction.FOLDER, path))

    def bind(self, path: str, action: MountAction) -> None:
        """Bind `path` at the same path, if it exists."""
        what = self.kind(path)
        if not what or path in self.made or self.within(path):
            return
        self.folder(path.rpartition("/")[0])
        if what.startswith(">") and path in SYSTEM:  # such as /lib → usr/lib
            self.link(path, what[1:])
            return
        if what.startswith(">"):
            what = self.kind(os.path.realpath(path))
        self.made.add(path)
        self.bound.add(path)
        self.steps.append(MountStep(MountAction.FOLDER if what == "folder" else MountAction.FILE, path))
        self.steps.append(MountStep(action, path, path))

    def link(self, path: str, to: str) -> None:
        """A symbolic link, unless the path is taken."""
        if path not in self.made:
            self.made.add(path)
            self.steps.append(MountStep(MountAction.LINK, path, to))


def base_view(reads: Iterable[str], devices: Iterable[str], kind: Callable[[str], str]) -> ViewBuilder:
    """What all launches of one driver share."""
    view = ViewBuilder(kind)
    for path in sorted(set(reads) - {"", "/"}):
        view.bind(path, MountAction.BIND)
    for path in sorted(devices):
        view.bind(path, MountAction.DEVICE)
    view.folder("/dev")
    view.folder("/proc")
    view.steps.append(MountStep(MountAction.PROC, "/proc"))
    return view


@cache
def cached_base(reads: tuple[str, ...], devices: tuple[str, ...]) -> ViewBuilder:
    """`base_view` of this file system, built once by a zygote for all launches forked from it."""
    return base_view(reads, devices, kind)


def steps(plan: MountPlan, base: ViewBuilder) -> tuple[MountStep, ...]:
    """The steps in order. `base`: `base_view` of the plan."""
    view = ViewBuilder(base.kind, base)
    if plan.model:
        view.bind(plan.model, MountAction.BIND)
    view.folder(plan.folder)
    view.steps.append(MountStep(MountAction.TMPFS, plan.folder))
    view.link("/dev/shm", plan.folder)  # noqa: S108
    view.link("/tmp", plan.folder)  # noqa: S108
    return tuple(view.steps)


def kind(path: str) -> str:
    """`folder`, `file`, empty for nothing, or `>` and the target of a symbolic link."""
    if os.path.islink(path):  # noqa: PTH114
        return f">{os.readlink(path)}"  # noqa: PTH115
    if os.path.isdir(path):  # noqa: PTH112
        return "folder"
    return "file" if os.path.exists(path) else ""  # noqa: PTH110
