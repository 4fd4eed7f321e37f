"""The sandbox of Linux, from the inside. Called by `drivers.launch.zygote` and `drivers.launch.child` in the processes that are shut in.

    keeper     own_processes()   a user namespace of its own, and a process namespace for what it forks next
      └ porter   begin_view()      no network, nothing but the plan's view: what every launch of the driver has, before there is one
                 finish_view()     the model and the folder; no capabilities; then waits, tells how the worker ended
          └ worker   shut_calls()    Landlock and the call filter, just before the model is touched

The porter is process 1 of the namespace: when it goes, the kernel ends everything in it. The worker is not process 1 itself, for
the kernel lets no such process end by a signal of its own, and an abort would be told as something else.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NoReturn

from drivers.sandbox import landlock, mounts, rlimits, seccomp
from drivers.sandbox.mounts import MountAction, MountPlan, MountStep

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x00020000, 0x02000000, 0x04000000
CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x08000000, 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC = 2, 4, 8, 0x1000, 0x4000
MS_PRIVATE, MS_SLAVE = 0x40000, 0x80000
MNT_DETACH: Final = 2
_MOUNT_SETATTR: Final = 442
_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41}
_CAPSET: Final = {"x86_64": 126, "aarch64": 91}
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_RDONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8  # MOUNT_ATTR_*
_CAPABILITY_VERSION: Final = 0x20080522
NOBODY: Final = 65534
STAGE: Final = "/proc"
"""Where the view is made: a folder that every Linux has, and of which nothing is bound."""
WORKER: Final = 2
"""Number of the worker in its namespace."""
VERDICT: Final = struct.Struct("=i")


def libc() -> ctypes.CDLL:
    """The C library of this process."""
    return ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """An `OSError` of the block says what was being done."""
    try:
        yield
    except OSError as why:
        raise OSError(why.errno, f"{what}: {why.strerror}") from why


def _must(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


# -- the keeper ------------------------------------------------------------------------------------------------------------


def own_processes() -> None:
    """What this process forks next is process 1 of a namespace, in a user namespace of its own. Raises OSError.

    The superuser is counted under nobody's number from here on, for its processes and threads would be bounded by nothing; what
    it may open is not changed by that.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        with doing("counting under another user"):
            os.setresuid(NOBODY, 0, 0)
    with doing("a user namespace"):
        _must(libc().unshare(CLONE_NEWUSER | CLONE_NEWPID))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def trouble_with(step: Callable[[], None]) -> str:
    """Do one step; why it failed, empty when it did not."""
    try:
        step()
    except OSError as why:
        return str(why.strerror or why)
    return ""


def try_out(full: bool, code: tuple[str, ...]) -> NoReturn:
    """In a forked child: shut it in, and end with 0 if that can be done here."""
    try:
        plan = mounts.plan("/sark-try", "", mounts.ROOT_BYTES, code=code, in_dev=())
        if full:
            own_processes()
        inner = os.fork()
        if inner == 0:
            if full:
                begin_view(plan)
                finish_view(plan)
            shut_calls(plan, all_of_it=full)
            os._exit(0)
        failed = os.waitpid(inner, 0)[1]
        os._exit(1 if failed else 0)
    finally:
        os._exit(1)


# -- the porter ------------------------------------------------------------------------------------------------------------


def begin_view(plan: MountPlan) -> None:
    """No network but with `plan.network`, and below `STAGE` all of the view that does not depend on the launch. Raises OSError saying
    at which step.
    """
    lib = libc()
    spaces = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP
    with doing("namespaces"):
        _must(lib.unshare(spaces | (0 if plan.network else CLONE_NEWNET)))
    with doing("private mounts"):
        # what the system unmounts goes here too: a view that waits for its launch must not hold a disk that was taken out
        _mount(lib, None, "/", None, MS_REC | MS_SLAVE, None)
    with doing("a root of its own"):
        _mount(lib, "sark", STAGE, "tmpfs", MS_NOSUID | MS_NODEV, f"size={mounts.ROOT_BYTES},mode=755")
    _take_all(lib, mounts.kept_base(plan.reads, plan.devices).steps, plan)


def finish_view(plan: MountPlan) -> None:
    """Put the model and the folder of `plan` into the view, move into it, give up all rights. Raises OSError saying at which step."""
    lib = libc()
    begun = mounts.kept_base(plan.reads, plan.devices)
    _take_all(lib, mounts.steps(plan, begun)[len(begun.steps) :], plan)
    with doing("moving in"):
        os.chdir(STAGE)
        _must(lib.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."))
        _must(lib.umount2(b".", MNT_DETACH))
        os.chdir("/")
        _only(lib, "/", _RDONLY | _NOSUID | _NODEV, recursive=False)
    with doing("giving up rights"):
        no_rights(lib)


def _take_all(lib: ctypes.CDLL, steps: Sequence[MountStep], plan: MountPlan) -> None:
    for step in steps:
        with doing(f"{step.act} {step.path}"):
            _take(lib, STAGE, step, plan)


def _take(lib: ctypes.CDLL, root: str, step: MountStep, plan: MountPlan) -> None:
    place = root + step.path
    match step.act:
        case MountAction.FOLDER:
            os.makedirs(place, mode=0o755, exist_ok=True)  # noqa: PTH103
        case MountAction.FILE:
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        case MountAction.LINK:
            with contextlib.suppress(FileExistsError):
                os.symlink(step.source, place)  # noqa: PTH211
        case MountAction.BIND:
            try:
                _mount(lib, step.source, place, None, MS_BIND | MS_REC, None)
            except FileNotFoundError:  # of the system, gone since the zygote looked
                if step.source == plan.model:
                    raise
                return
            _only(lib, place, _RDONLY | _NOSUID | _NODEV | (_NOEXEC if step.source == plan.model else 0))
        case MountAction.DEVICE:
            _mount(lib, step.source, place, None, MS_BIND | MS_REC, None)
            _only(lib, place, _NOSUID | _NOEXEC)
        case MountAction.PROC:
            _mount(lib, "proc", place, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)
            for name in mounts.PROC_SHUT:
                shut = f"{place}/{name}"
                if mounts.kind(shut):
                    _mount(lib, shut, shut, None, MS_BIND, None)
                    _only(lib, shut, _RDONLY)
        case MountAction.ROOM:
            os.makedirs(place, mode=0o700, exist_ok=True)  # noqa: PTH103
            room = f"size={plan.room_bytes},mode=700,nr_inodes=4096"
            _mount(lib, "sark", place, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, room)


def _mount(
    lib: ctypes.CDLL, source: str | None, place: str, kind: str | None, flags: int, data: str | None
) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, place, kind, data)]
    _must(lib.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]))


def _only(lib: ctypes.CDLL, place: str, attributes: int, *, recursive: bool = True) -> None:
    """Set attributes on a mount and those below it (Linux 5.12), to which nothing that the system mounts there later will come."""
    told = struct.pack("=4Q", attributes, 0, MS_PRIVATE, 0)
    flags = _AT_RECURSIVE if recursive else 0
    _must(lib.syscall(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(place), flags, told, ctypes.c_size_t(len(told))))


def no_rights(lib: ctypes.CDLL) -> None:
    """No capabilities, and none to be had by executing anything."""
    seccomp.no_new_privileges(lib)
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    _must(lib.syscall(_CAPSET[os.uname().machine], header, bytes(24)))


def stand_at_the_door(verdict: int) -> None:
    """Fork the worker and return in it. In the porter: wait, write how the worker ended to `verdict`, end; all else ends with it."""
    worker = os.fork()
    if worker == 0:
        os.close(verdict)
        return
    try:
        os.closerange(0, verdict)
        os.closerange(verdict + 1, 1 << 16)
        pid = status = 0
        while pid != worker:  # what the worker left behind comes to process 1
            pid, status = os.waitpid(-1, 0)
        os.write(verdict, VERDICT.pack(os.waitstatus_to_exitcode(status)))
    finally:
        os._exit(0)


def die_with_keeper(verdict: int) -> None:
    """As `confine.die_with`, for a process that cannot see its parent: the other end of `verdict` is open while that lives."""
    rlimits.prctl(rlimits.PR_SET_PDEATHSIG, 9)
    poller = select.poll()
    poller.register(verdict, 0)
    if poller.poll(0):
        os._exit(1)


# -- the worker ------------------------------------------------------------------------------------------------------------


def shut_calls(plan: MountPlan, *, all_of_it: bool) -> tuple[str, ...]:
    """Landlock and the call filter, for good; what of them is not to be had here, in words.

    `all_of_it`: a missing filter raises OSError. Otherwise one of the two is enough, and OSError says that there is neither.
    """
    lib = libc()
    missing: list[str] = []
    no_rights(lib)
    parts: tuple[tuple[str, Callable[[], None]], ...] = (
        (
            "Landlock",
            lambda: landlock.restrict(lib, mounts.landlock_rules(plan, in_view=all_of_it), plan.network),
        ),
        (
            "seccomp",
            lambda: seccomp.install(lib, seccomp.prepared(os.getpid(), plan.network, plan.gpu, all_of_it)),
        ),
    )
    for name, shut in parts:
        try:
            shut()
        except OSError as why:
            if all_of_it and name == "seccomp":
                raise
            missing.append(f"no {name} here ({os.strerror(why.errno or errno.EPERM)})")
    if len(missing) == len(parts):
        raise OSError(errno.ENOSYS, "; ".join(missing))
    return tuple(missing)


def prepare(plan: MountPlan) -> None:
    """In the zygote: make once what each launch forked from it needs."""
    mounts.kept_base(plan.reads, plan.devices)
    seccomp.prepared(WORKER, plan.network, plan.gpu, True)


def is_here() -> bool:
    """Whether this is a system for which all this is written."""
    return sys.platform == "linux" and os.uname().machine in seccomp.ARCHITECTURES
