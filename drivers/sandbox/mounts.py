"""The part of the file system that a sandboxed process sees. `MountPlan` describes it once; the mounts of the full tier and the Landlock
rules of both tiers are derived from it."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

from drivers.contract.base import MIB
from drivers.contract.boot import VARIABLE
from drivers.sandbox.landlock import DEVICE, READ, WRITE, WRITE_FILE

SYSTEM: Final = (
    *("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/nix/store", "/run/opengl-driver"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime"),
    *("/etc/OpenCL", "/etc/vulkan", "/etc/nvidia"),
)
"""Programs and libraries; no file of /etc that names people, hosts or secrets."""
PROCESSORS: Final = ("/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/fs/cgroup/cpu.max")
"""Files that runtimes read: processors, memory nodes, the container's share of them."""
SENSORS: Final[Mapping[str, tuple[str, ...]]] = {
    "/sys/class/thermal": ("type", "temp"),
    "/sys/class/power_supply": ("type", "online", "status", "scope"),
}
"""Classes of sensors that a measurement reads → the files of each sensor. A battery's serial number is in another file."""
OF_GPU: Final = ("/sys/devices", "/sys/class", "/sys/bus", "/sys/module", "/opt/rocm")
"""Folders that GPU drivers search: which files they need is documented nowhere."""
IDENTIFYING: Final = ("net", "dmi", "block", "nvme", "scsi_host", "mmc_host")
"""Classes of devices with addresses and serial numbers, hidden inside `OF_GPU`."""
OF_NETWORK: Final = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
)
DEVICES: Final = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
"""Without /dev/zero: no limit counts memory shared through it (`drivers.sandbox.seccomp`)."""
GPU_DEVICES: Final = ("nvidia", "dri", "kfd", "dxg", "mali", "accel")
"""Prefixes of accelerators' names in /dev."""
PROC_READ_ONLY: Final = ("sys", "bus")
"""Parts of /proc that uid 0 could write to even without capabilities."""
PROC_HIDDEN: Final = (
    *(
        "acpi",
        "asound",
        "cmdline",
        "config.gz",
        "consoles",
        "diskstats",
        "fs",
        "interrupts",
        "iomem",
        "ioports",
        "irq",
    ),
    *(
        "kallsyms",
        "kcore",
        "key-users",
        "keys",
        "kmsg",
        "mdstat",
        "modules",
        "partitions",
        "sched_debug",
        "scsi",
    ),
    *("slabinfo", "swaps", "sys/kernel/random/boot_id", "sysrq-trigger", "timer_list", "tty", "vmallocinfo"),
)
"""Files of /proc that identify this device, or that reveal other users or processes, which a run need not know about."""
PROC_READABLE: Final = (
    *("cpuinfo", "filesystems", "loadavg", "meminfo", "pressure", "stat", "uptime", "version", "vmstat"),
    *("sys/vm", "sys/kernel/osrelease", "sys/kernel/ostype"),
)
"""Parts of /proc that runtimes and measurements read, in addition to the process itself, if the launch has no view of its own."""
ROOT_BYTES: Final = 4 * MIB


@dataclass(frozen=True, slots=True)
class MountPlan:
    """The view of one launch. Paths are absolute and equal inside and outside."""

    folder: str
    """The only folder that the launch may write to."""
    models: tuple[str, ...]
    """Files or folders."""
    reads: tuple[str, ...]
    devices: tuple[str, ...]
    size_bytes: int
    """Limit of all files in the folder together."""
    network: bool = False
    gpu: bool = False
    hidden: tuple[str, ...] = ()
    """Paths inside `reads` and /proc that appear empty to a launch with a view of its own."""


def code_folders(frozen: bool = bool(getattr(sys, "frozen", False))) -> tuple[str, ...]:
    """Folders of this program, its interpreter, packages and libraries. `frozen`: modules are read from the program's own file.

    Of a clone only its packages are listed: a home, keys or models may be next to them.
    """
    program = os.path.dirname(sys.executable) if frozen else str(Path(__file__).parents[2])  # noqa: PTH120
    places = [sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path, *site.getsitepackages(), program]
    named = [os.environ.get("LD_LIBRARY_PATH", ""), os.environ.get(VARIABLE, "")]
    libraries = os.pathsep.join(named).split(os.pathsep)
    if not frozen and os.path.exists(f"{program}/pyproject.toml"):  # noqa: PTH110
        places = [*(place for place in places if place != program), *packages_of(program)]
    return tuple(dict.fromkeys(place for place in (*places, *libraries) if place.startswith("/")))


@cache
def packages_of(clone: str) -> tuple[str, ...]:
    """The packages and modules in a folder of sources; searched once, not for each launch."""
    packages = (init.parent for init in Path(clone).glob("*/__init__.py"))
    return tuple(sorted(map(str, (*packages, *Path(clone).glob("*.py")))))


@cache
def sensors() -> tuple[str, ...]:
    """The files of this device's sensors (`SENSORS`), and the folders that link to them."""
    found = [
        os.path.realpath(f"{kind}/{name}/{file}")
        for kind, files in SENSORS.items()
        for name in _listed(kind)
        for file in files
    ]
    return (*SENSORS, *found)


@cache
def identifying() -> tuple[str, ...]:
    """The folders of /sys with devices of the classes in `IDENTIFYING`."""
    places = {
        os.path.dirname(os.path.realpath(f"/sys/class/{kind}/{name}"))  # noqa: PTH120
        for kind in IDENTIFYING
        for name in _listed(f"/sys/class/{kind}")
    }
    return tuple(sorted(place for place in places if place.startswith("/sys/devices/")))


def is_open_to_others(path: str) -> bool:
    """Whether any user may read a file or folder and reach it from the root; also true if it does not exist."""
    try:
        state = os.stat(path)  # noqa: PTH116
        above = [os.stat(parent) for parent in Path(os.path.realpath(path)).parents]  # noqa: PTH116
    except OSError:
        return True
    return bool(state.st_mode & 0o004) and all(parent.st_mode & 0o001 for parent in above)


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return []


def plan(
    folder: str,
    models: tuple[str, ...],
    size_bytes: int,
    *,
    code: Iterable[str],
    in_dev: Iterable[str],
    network: bool = False,
    gpu: bool = False,
) -> MountPlan:
    """The view that a launch needs. `code`: see `code_folders`. `in_dev`: the names in /dev."""
    gpus = [f"/dev/{name}" for name in sorted(in_dev) if gpu and name.startswith(GPU_DEVICES)]
    kernel = (*PROCESSORS, *(OF_GPU if gpu else sensors()))
    reads = (*SYSTEM, *kernel, *(OF_NETWORK if network else ()), *code)
    hidden = (
        *(f"/proc/{name}" for name in PROC_HIDDEN),
        *(identifying() if gpu else ("/proc/bus", "/proc/driver")),
    )
    devices = (*DEVICES, *(("/dev/zero", *gpus) if gpu else ()))
    return MountPlan(folder, models, reads, devices, size_bytes, network, gpu, hidden)


def landlock_rules(plan: MountPlan, *, in_view: bool) -> tuple[tuple[str, int], ...]:
    """(path, rights) for `landlock.restrict`. `in_view`: only the plan is mounted, so one rule suffices."""
    proc = ("/proc",) if plan.network or plan.gpu else tuple(f"/proc/{name}" for name in PROC_READABLE)
    paths = ("/",) if in_view else (*plan.reads, *proc, *plan.models)
    writes = ((plan.folder, WRITE), ("/proc/self", READ | WRITE_FILE))
    return (*((path, READ) for path in paths if path), *writes, *((path, DEVICE) for path in plan.devices))


class MountAction(StrEnum):
    FOLDER = "folder"
    LINK = "link"
    FILE = "file"
    BIND = "bind"
    DEVICE = "device"
    PROC = "proc"
    HIDE = "hide"
    TMPFS = "tmpfs"


@dataclass(frozen=True, slots=True)
class MountStep:
    """`path`: below the new root. `source`: a link's target, the path that is bound, or the kind of path that is hidden."""

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
        """Add a symbolic link, unless the path is taken."""
        if path not in self.made:
            self.made.add(path)
            self.steps.append(MountStep(MountAction.LINK, path, to))


def base_view(
    reads: Iterable[str], devices: Iterable[str], hidden: Iterable[str], kind: Callable[[str], str]
) -> ViewBuilder:
    """The part of the view that all launches of one driver share."""
    view = ViewBuilder(kind)
    for path in sorted(set(reads) - {"", "/"}):
        view.bind(path, MountAction.BIND)
    for path in sorted(devices):
        view.bind(path, MountAction.DEVICE)
    view.folder("/dev")
    view.folder("/proc")
    view.steps.append(MountStep(MountAction.PROC, "/proc"))
    view.steps += [
        MountStep(MountAction.HIDE, path, is_a)
        for path in hidden
        if (is_a := kind(path)) in ("file", "folder")
    ]
    return view


@cache
def cached_base(reads: tuple[str, ...], devices: tuple[str, ...], hidden: tuple[str, ...]) -> ViewBuilder:
    """`base_view` of this file system, built once by a zygote for all launches forked from it."""
    return base_view(reads, devices, hidden, kind)


def steps(plan: MountPlan, base: ViewBuilder) -> tuple[MountStep, ...]:
    """The steps in order. `base`: `base_view` of the plan."""
    view = ViewBuilder(base.kind, base)
    for model in plan.models:
        view.bind(model, MountAction.BIND)
    view.folder(plan.folder)
    view.steps.append(MountStep(MountAction.TMPFS, plan.folder))
    view.link("/dev/shm", plan.folder)  # noqa: S108
    view.link("/tmp", plan.folder)  # noqa: S108
    return tuple(view.steps)


def kind(path: str) -> str:
    """Kind of a path: `folder`, `file`, empty if nothing is there, or `>` and the target of a symbolic link."""
    if os.path.islink(path):  # noqa: PTH114
        return f">{os.readlink(path)}"  # noqa: PTH115
    if os.path.isdir(path):  # noqa: PTH112
        return "folder"
    return "file" if os.path.exists(path) else ""  # noqa: PTH110
