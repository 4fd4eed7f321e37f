"""The sandbox of Linux, from the inside: called by `drivers.launch.reaper` and `drivers.launch.child` in the sandboxed processes.

    reaper     own_processes()   a user namespace of its own, and a process namespace for the processes it forks next
      └ init     begin_view()      no network, and only what every launch of the driver sees
                 finish_view()     the model and the folder; no capabilities
                 await_worker()    reports the worker's exit code
          └ worker   give_up_rights()  forked between the two, it is in the view once that is complete; no capabilities
                     restrict()        Landlock and the call filter, just before the model is touched

The init is process 1 of the namespace: when it ends, the kernel kills everything in it. The worker is not process 1 itself, because process
1 cannot die by a signal of its own, so that an abort would look like something else.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NoReturn

from drivers.sandbox import enter, landlock, mounts, seccomp
from drivers.sandbox.mounts import MountAction, MountPlan, MountStep

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x00020000, 0x02000000, 0x04000000
CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x08000000, 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC = 1, 2, 4, 8, 0x1000, 0x4000
MS_PRIVATE, MS_SLAVE = 0x40000, 0x80000
MNT_DETACH: Final = 2
_MOUNT_SETATTR: Final = 442
_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41}
_CAPSET: Final = {"x86_64": 126, "aarch64": 91}
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_RDONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8  # MOUNT_ATTR_*
_CAPABILITY_VERSION: Final = 0x20080522
NOBODY: Final = 65534
PR_SET_DUMPABLE: Final = 4
HOSTNAME: Final = b"sark"
NEW_ROOT: Final = "/proc"
"""The view is built over this folder, which every Linux has, and from which nothing is bound."""
WORKER: Final = 2
"""The worker's process id in its namespace."""
EXIT_STATUS: Final = struct.Struct("=i")


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def prefix_os_errors(what: str) -> Iterator[None]:
    """Prefix the message of an `OSError` raised in the block."""
    try:
        yield
    except OSError as why:
        raise OSError(why.errno, f"{what}: {why.strerror}") from why


def _must(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


# -- the reaper ------------------------------------------------------------------------------------------------------------


@cache
def drops_root() -> bool:
    """Whether launches give up root: this process is root, and the system has the user `nobody`. Determined once, before the view."""
    return os.geteuid() == 0 and all(
        holds(Path(f"/proc/self/{kind}_map").read_text(), NOBODY) for kind in ("uid", "gid")
    )


def holds(id_map: str, number: int) -> bool:
    """Whether a user namespace maps this number, according to its `uid_map` or `gid_map`."""
    lines = [[int(word) for word in line.split()] for line in id_map.splitlines()]
    return any(first <= number < first + count for first, _, count in lines)


def device_groups(devices: Iterable[str]) -> tuple[int, ...]:
    """Groups other than root's that give access to devices."""
    states = [os.stat(path) for path in devices if os.path.exists(path)]  # noqa: PTH110, PTH116
    return tuple(
        sorted({state.st_gid for state in states if state.st_gid and not state.st_mode & 0o002} - {NOBODY})
    )


def own_processes(plan: MountPlan) -> None:
    """Put the processes that this process forks next into a process namespace, the first as process 1, in a new user namespace. Raises
    OSError.

    A user's namespace maps only that user. Root's maps root, which makes the view, `nobody`, as which the launch continues, and the groups
    of its devices. Only a process outside may map two users, so one is forked for this.
    """
    uid, gid = os.geteuid(), os.getegid()
    nobody = drops_root()
    uids = (uid, NOBODY) if nobody else (uid,)
    gids = (gid, NOBODY, *device_groups(plan.devices)) if nobody else (gid,)
    mapping = _Mapping(os.getpid(), uids, gids) if nobody else None
    with prefix_os_errors("a user namespace"):
        try:
            _must(libc().unshare(CLONE_NEWUSER | CLONE_NEWPID))
        finally:
            if mapping is not None:
                mapping.go()
        if mapping is None:
            Path("/proc/self/setgroups").write_text("deny")
            write_maps("self", uids, gids)


def write_maps(process: int | str, uids: Sequence[int], gids: Sequence[int]) -> None:
    """Map these numbers in the user namespace of `process`, to the same numbers as outside."""
    for kind, numbers in (("uid", uids), ("gid", gids)):
        lines = "".join(f"{number} {number} 1\n" for number in dict.fromkeys(numbers))
        Path(f"/proc/{process}/{kind}_map").write_text(lines)


class _Mapping:
    """A process that stays outside a new user namespace, and maps its numbers once the namespace exists."""

    def __init__(self, process: int, uids: Sequence[int], gids: Sequence[int]) -> None:
        made, self._made = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._made)
                os.read(made, 1)
                write_maps(process, uids, gids)
                os._exit(0)
            finally:
                os._exit(1)
        os.close(made)

    def go(self) -> None:
        """Have the process map the numbers. Raises OSError."""
        os.close(self._made)
        if os.waitpid(self._pid, 0)[1]:
            raise OSError(errno.EPERM, "mapping its users was refused")


def become_nobody(plan: MountPlan) -> None:
    """Continue as `nobody`, for good, also outside the namespace."""
    os.setgroups(device_groups(plan.devices))
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    enter.prctl(PR_SET_DUMPABLE, 1)  # otherwise its own files in /proc would be root's


def check_readable(model: str) -> None:
    """Raise OSError, with a remedy, if this user may not read the model. A model that is missing or a link is left to its driver to
    refuse."""
    inside = [model] if not os.path.isdir(model) else []  # noqa: PTH112
    for folder, _, names in os.walk(model):
        inside += [folder, *(f"{folder}/{name}" for name in names)]
    for path in inside:
        if mounts.kind(path) in ("file", "folder") and not os.access(path, os.R_OK):
            hint = f"as root, this node runs models as nobody: chmod a+r {path}, or run the node as a user"
            raise OSError(errno.EACCES, f"nobody may not read {path} ({hint})")


def error_of(step: Callable[[], None]) -> str:
    """Do one step; returns why it failed, or an empty text if it succeeded."""
    try:
        step()
    except OSError as why:
        return str(why.strerror or why)
    return ""


def try_out(full: bool, code: tuple[str, ...]) -> NoReturn:
    """In a forked child: enter the sandbox, and exit with 0 if that works."""
    try:
        plan = mounts.plan("/sark-try", (), mounts.ROOT_BYTES, code=code, in_dev=())
        if full:
            own_processes(plan)
        inner = os.fork()
        if inner == 0:
            if full:
                begin_view(plan)
                finish_view(plan)
            restrict(plan, full=full)
            os._exit(0)
        failed = os.waitpid(inner, 0)[1]
        os._exit(1 if failed else 0)
    finally:
        os._exit(1)


# -- the init --------------------------------------------------------------------------------------------------------------


def begin_view(plan: MountPlan) -> None:
    """Disconnect from the network unless `plan.network`, and build below `NEW_ROOT` the part of the view that does not depend on the
    launch. Raises OSError, naming the step."""
    lib = libc()
    spaces = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP
    with prefix_os_errors("namespaces"):
        _must(lib.unshare(spaces | (0 if plan.network else CLONE_NEWNET)))
        _must(lib.sethostname(HOSTNAME, len(HOSTNAME)))
    with prefix_os_errors("private mounts"):
        # unmounts propagate: a waiting view must not hold a removed disk
        _mount(lib, None, "/", None, MS_REC | MS_SLAVE, None)
    with prefix_os_errors("a root of its own"):
        _mount(lib, "sark", NEW_ROOT, "tmpfs", MS_NOSUID | MS_NODEV, f"size={mounts.ROOT_BYTES},mode=755")
    _do_all(lib, mounts.cached_base(plan.reads, plan.devices, plan.hidden).steps, plan)


def finish_view(plan: MountPlan) -> None:
    """Add the model and the folder of `plan` to the view, move all processes of the view into it, and give up this process's rights. Raises
    OSError, naming the step."""
    lib = libc()
    base = mounts.cached_base(plan.reads, plan.devices, plan.hidden)
    _do_all(lib, mounts.steps(plan, base)[len(base.steps) :], plan)
    with prefix_os_errors("moving in"):
        os.chdir(NEW_ROOT)
        _must(lib.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."))
        _must(lib.umount2(b".", MNT_DETACH))
        os.chdir("/")
        _set_attributes(lib, "/", _RDONLY | _NOSUID | _NODEV, recursive=False)
    give_up_rights(plan)
    if drops_root():
        for model in plan.models:
            check_readable(model)


def give_up_rights(plan: MountPlan) -> None:
    """Drop all capabilities, and become `nobody` instead of root, for good. Affects this process only. Raises OSError, naming the step."""
    if drops_root():
        with prefix_os_errors("becoming nobody"):
            become_nobody(plan)
    with prefix_os_errors("dropping capabilities"):
        drop_capabilities(libc())


def _do_all(lib: ctypes.CDLL, steps: Sequence[MountStep], plan: MountPlan) -> None:
    for step in steps:
        with prefix_os_errors(f"{step.action} {step.path}"):
            _do(lib, NEW_ROOT, step, plan)


def _do(lib: ctypes.CDLL, root: str, step: MountStep, plan: MountPlan) -> None:
    place = root + step.path
    match step.action:
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
            except FileNotFoundError:  # a system path that has gone since the zygote looked
                if step.source in plan.models:
                    raise
                return
            _set_attributes(
                lib, place, _RDONLY | _NOSUID | _NODEV | (_NOEXEC if step.source in plan.models else 0)
            )
        case MountAction.DEVICE:
            _mount(lib, step.source, place, None, MS_BIND | MS_REC, None)
            _set_attributes(lib, place, _NOSUID | _NOEXEC)
        case MountAction.PROC:
            _mount(lib, "proc", place, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)
            for name in mounts.PROC_READ_ONLY:
                path = f"{place}/{name}"
                if mounts.kind(path):
                    _mount(lib, path, path, None, MS_BIND, None)
                    _set_attributes(lib, path, _RDONLY)
        case MountAction.HIDE:
            if step.source == "folder":
                _mount(lib, "sark", place, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k,mode=555")
            else:
                _mount(lib, f"{root}/dev/null", place, None, MS_BIND, None)
        case MountAction.TMPFS:
            os.makedirs(place, mode=0o700, exist_ok=True)  # noqa: PTH103
            options = f"size={plan.size_bytes},mode=700,nr_inodes=4096"
            if drops_root():
                options += f",uid={NOBODY},gid={NOBODY}"
            _mount(lib, "sark", place, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options)


def _mount(
    lib: ctypes.CDLL, source: str | None, place: str, kind: str | None, flags: int, data: str | None
) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, place, kind, data)]
    _must(lib.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]))


def _set_attributes(lib: ctypes.CDLL, place: str, attributes: int, *, recursive: bool = True) -> None:
    """Set attributes on a mount and those below it (Linux 5.12), and keep later mounts of the system out."""
    attributes_ = struct.pack("=4Q", attributes, 0, MS_PRIVATE, 0)
    flags = _AT_RECURSIVE if recursive else 0
    _must(
        lib.syscall(
            _MOUNT_SETATTR,
            _AT_FDCWD,
            os.fsencode(place),
            flags,
            attributes_,
            ctypes.c_size_t(len(attributes_)),
        )
    )


def drop_capabilities(lib: ctypes.CDLL) -> None:
    """Drop all capabilities, so that executing a program restores none."""
    seccomp.no_new_privileges(lib)
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    _must(lib.syscall(_CAPSET[os.uname().machine], header, bytes(24)))


def await_worker(worker: int, status_write: int) -> NoReturn:
    """In the init: wait for the worker, write its exit code to `status_write`, and exit, which ends all other processes."""
    try:
        os.closerange(0, status_write)
        os.closerange(status_write + 1, 1 << 16)
        pid = status = 0
        while pid != worker:  # process 1 inherits orphans
            pid, status = os.waitpid(-1, 0)
        os.write(status_write, EXIT_STATUS.pack(os.waitstatus_to_exitcode(status)))
    finally:
        os._exit(0)


def die_with_reaper(status_write: int) -> None:
    """Like `enter.die_with`, for a process that cannot see its parent. The parent keeps the other end of `status_write` open while it
    lives."""
    enter.prctl(enter.PR_SET_PDEATHSIG, 9)
    poller = select.poll()
    poller.register(status_write, 0)
    if poller.poll(0):
        os._exit(1)


# -- the worker ------------------------------------------------------------------------------------------------------------


def restrict(plan: MountPlan, *, full: bool) -> None:
    """Apply Landlock and the call filter, for good. Raises OSError if both are missing; with `full`, if the call filter is missing. Without
    a view, root becomes `nobody` only if every user can read the program and the model."""
    lib = libc()
    if (
        not full
        and drops_root()
        and all(mounts.is_open_to_others(path) for path in (*plan.reads, *plan.models))
    ):
        with prefix_os_errors("becoming nobody"):
            os.chown(plan.folder, NOBODY, NOBODY)
            become_nobody(plan)
            enter.prctl(enter.PR_SET_PDEATHSIG, 9)
    drop_capabilities(lib)
    missing = ""
    try:
        landlock.restrict(lib, mounts.landlock_rules(plan, in_view=full), plan.network)
    except OSError as why:
        missing = f"no Landlock ({os.strerror(why.errno or errno.EPERM)})"
    try:
        seccomp.install(lib, seccomp.filter_for(os.getpid(), plan.network, plan.gpu, full))
    except OSError as why:
        if full:
            raise
        if missing:
            filter_ = f"no seccomp ({os.strerror(why.errno or errno.EPERM)})"
            raise OSError(errno.ENOSYS, f"{missing}; {filter_}") from why


def prepare(plan: MountPlan) -> None:
    """In the zygote: find and build once what all launches forked from it need."""
    drops_root()
    mounts.cached_base(plan.reads, plan.devices, plan.hidden)
    seccomp.filter_for(WORKER, plan.network, plan.gpu, True)


def is_supported() -> bool:
    """Whether this module works on this system."""
    return sys.platform == "linux" and os.uname().machine in seccomp.ARCHITECTURES
