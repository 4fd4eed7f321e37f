"""A zygote with a malicious driver, run as a program in place of `drivers.launch.zygote`, with its arguments.

Its model is a JSON object: `try` names acts that are tried in order, each giving a figure of 1 (it worked) or 0 (refused);
`do` names one act that may end the process; the other keys are what the acts need, such as paths and numbers outside.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import glob
import json
import mmap
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from drivers.contract.base import (
    CheckReport,
    Event,
    LoadReport,
    MeasureReport,
    ModelDescription,
    RunFindings,
    UnitInfo,
    WorkOrder,
)
from drivers.launch import zygote
from drivers.sandbox import seccomp
from drivers.sandbox.enter import Tier
from tests.drivers import holding

LIBC = ctypes.CDLL(None, use_errno=True)
COLUMN = 0 if os.uname().machine == "x86_64" else 1
NUMBERS = {rule.name: rule.numbers[COLUMN] for rule in seccomp.rules(0, False, False)}
MIB = 1 << 20


def call(name: str, *arguments: Any) -> None:
    """Make a system call by number, not through a library function. Raises OSError."""
    if LIBC.syscall(NUMBERS[name], *arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def read(path: str) -> bytes:
    return Path(path).read_bytes()


def through_a_link(path: str) -> bytes:
    link = Path("link")
    link.unlink(missing_ok=True)
    link.symlink_to(path)
    return link.read_bytes()


def hard_link(path: str) -> bytes:
    os.link(path, "hard")
    return Path("hard").read_bytes()


def look_for(path: str) -> None:
    if Path(path).name not in os.listdir(Path(path).parent):  # noqa: PTH208
        raise OSError(errno.ENOENT, path)


def send_datagram(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.sendto(b"out", ("127.0.0.1", port))


def abstract(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as out:
        out.connect(f"\0{name}")


def by_file(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as out:
        out.connect(path)


def clone_raw() -> None:
    number = 56 if COLUMN == 0 else 220
    pid = LIBC.syscall(number, signal.SIGCHLD, None, None, None, None)
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone")
    if pid == 0:
        os._exit(0)


def clone_by_pointer() -> None:
    result = (ctypes.c_uint64 * 11)(0, 0, 0, 0, signal.SIGCHLD)
    pid = LIBC.syscall(435, result, ctypes.sizeof(result))
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone3")
    if pid == 0:
        os._exit(0)


def threads_without_end() -> None:
    """Start threads without end. Raises OSError when a limit below 1500 stops it."""
    hold = threading.Event()
    threading.stack_size(64 * 1024)
    started: list[threading.Thread] = []
    try:
        for _ in range(1500):
            thread = threading.Thread(target=hold.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        raise OSError(errno.EAGAIN, f"after {len(started)} threads") from None
    finally:
        hold.set()
        for thread in started:
            thread.join()


def fill_folder(room: int) -> None:
    """Write many files, each within the limit for one file."""
    block = bytes(MIB)
    for number in range(room // MIB + 2):
        Path(f"fill-{number}").write_bytes(block)


def file_in_memory() -> None:
    os.close(os.memfd_create("hoard"))


def big_file(room: int) -> None:
    with open("big", "wb") as out:  # noqa: PTH123
        out.seek(room + MIB)
        out.write(b"end")


def speak_for_the_reaper() -> None:
    """Look for a socket that was left open. Raises OSError if there is none."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):  # noqa: PTH115
                return
    raise OSError(errno.EBADF, "no socket")


def own_the_node(pid: int) -> None:
    """Have a file signal the node when it is ready, which it never is."""
    ready, wake = os.pipe()
    try:
        fcntl.fcntl(ready, fcntl.F_SETOWN, pid)
    finally:
        os.close(ready)
        os.close(wake)


def dig() -> None:
    """Nest folders deeper than a tidy-up can descend, and make one that nobody may enter."""
    Path("shut", "in").mkdir(parents=True)
    Path("shut").chmod(0)
    for _ in range(3000):
        Path("down").mkdir()
        os.chdir("down")
    os._exit(7)


def run_own_code() -> None:
    """Map a file from its own folder as executable code, as a library would be."""
    with open("code", "wb+") as file:  # noqa: PTH123
        file.write(bytes(4096))
        file.flush()
        mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC).close()


def more_memory() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2 * soft, 2 * soft))


def no_more_files() -> None:
    held = [os.open("/dev/null", os.O_RDONLY)]
    try:
        while len(held) < 1000:
            held.append(os.dup(held[0]))
    finally:
        for fd in held:
            os.close(fd)


def become() -> None:
    """Run another program. The call got through if the answer is that no such program exists."""
    try:
        os.execv("/no/such/program", ["program"])  # noqa: S606
    except FileNotFoundError:
        return


def tries(setup: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Acts by name. Each raises OSError if it is refused."""
    pairs, node, key = setup["neighbour"], setup["node"], setup["key"]
    return {
        "read a file next to the model": lambda: read(pairs),
        "read it by a symbolic link": lambda: through_a_link(pairs),
        "read it by a hard link": lambda: hard_link(pairs),
        "read it by going up": lambda: read(f"{setup['model']}/../{Path(pairs).name}"),
        "read it by going up from its own folder": lambda: read("/proc/self/cwd/.." + pairs),
        "read a key of the node": lambda: read(key),
        "look into the node's folder": lambda: look_for(key),
        "read who uses this device": lambda: read("/etc/passwd"),
        "read the node's environment": lambda: read(f"/proc/{node}/environ"),
        "read the node's files by its root": lambda: read(f"/proc/{node}/root{pairs}"),
        "see the node's process": lambda: read(f"/proc/{node}/stat"),
        "look into temporary files": lambda: look_for(pairs),
        "write next to the model": lambda: Path(pairs).with_name("written").write_bytes(b"x"),
        "change the rights next to the model": lambda: Path(pairs).chmod(0o600),
        "change the times next to the model": lambda: os.utime(pairs, (1, 1)),
        "mark the file next to the model": lambda: os.setxattr(pairs, "user.mark", b"x"),
        "cut off the file next to the model": lambda: os.truncate(pairs, 1 << 10),
        "connect to a local service by its file": lambda: by_file(setup["service"]),
        "write into the model": lambda: Path(setup["model"]).open("r+b").close(),
        "remove the model": lambda: Path(setup["model"]).unlink(),
        "write into the libraries": lambda: Path(sys.prefix, "left-here").write_bytes(b"x"),
        "change the kernel's settings": lambda: Path("/proc/sys/kernel/core_pattern").open("r+b").close(),
        "press the kernel's keys": lambda: Path("/proc/sysrq-trigger").open("wb").close(),
        "connect": lambda: socket.create_connection(("127.0.0.1", setup["port"]), 0.5).close(),
        "send a datagram": lambda: send_datagram(setup["port"]),
        "open a socket of version 6": lambda: socket.socket(socket.AF_INET6).close(),
        "ask the kernel about the network": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close(),
        "connect to a local service": lambda: abstract(setup["abstract"]),
        "fork": clone_raw,
        "fork with flags behind a pointer": clone_by_pointer,
        "run a program": lambda: os.posix_spawn("/bin/true", ["true"], {}),
        "become a program": become,
        "signal the node": lambda: os.kill(node, 0),
        "signal everybody": lambda: os.kill(-1, 0),
        "signal the node by a file": lambda: own_the_node(node),
        "hold the node by its number": lambda: os.close(os.pidfd_open(node)),
        "limit the node": lambda: resource.prlimit(node, resource.RLIMIT_CPU),
        "speak for the reaper": speak_for_the_reaper,
        "outlive the reaper": lambda: _prctl(1, 0),
        "be somebody else": lambda: os.setresuid(os.geteuid(), os.geteuid(), os.geteuid()),
        "new namespaces": lambda: call("unshare", 0x10000000),
        "watch the kernel": lambda: call("perf_event_open", None, 0, -1, -1, 0),
        "handle page faults": lambda: call("userfaultfd", 0),
        "rings into the kernel": lambda: call("io_uring_setup", 1, ctypes.create_string_buffer(120)),
        "the kernel's keyring": lambda: call("keyctl", 0, -3, 1),
        "memory that outlives it": lambda: call("shmget", 0, 4096, 0o1600),
        "files in memory": file_in_memory,
        "threads without end": threads_without_end,
        "fill the disk": lambda: fill_folder(setup["room"]),
        "code of its own": run_own_code,
        "open more files": no_more_files,
        "take more memory than allowed": more_memory,
        "dump its memory": lambda: resource.setrlimit(resource.RLIMIT_CORE, (1, 1)),
    }


def _prctl(option: int, value: int) -> None:
    if LIBC.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def manifests(setup: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Acts that should not return, or whose traces are looked for afterwards."""
    pid = setup["node"]
    return {
        "ptrace": lambda: call("ptrace", 16, pid, None, None),
        "mount": lambda: call("mount", b"x", b"/tmp", b"tmpfs", 0, None),
        "load code into the kernel": lambda: call("bpf", 0, None, 0),
        "start another kernel": lambda: call("kexec_load", 0, 0, None, 0),
        "write into the node's memory": lambda: call("process_vm_writev", pid, None, 0, None, 0, 0),
        "another numbering of calls": lambda: LIBC.syscall(0x40000000 | 39),
        "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
        "abort": os.abort,
        "eat memory": lambda: [bytearray(MIB) for _ in range(100_000)],
        "go round for ever": _for_ever,
        "write a large file": lambda: big_file(setup["room"]),
        "flood the pipe": _flood,
        "talk nonsense": lambda: _talk(b"\xff" * 64),
        "leave the group": _leave,
        "dig": dig,
        "leave a note": lambda: Path("note").write_bytes(b"for the next"),
        "look for a note": _tell_folder,
    }


def _readable(path: str) -> bool:
    """Whether the file is readable and not empty, or the path a folder. Of a pattern's matches, only the first counts."""
    for one in glob.glob(path)[:1]:  # noqa: PTH207
        with contextlib.suppress(OSError):
            return bool(Path(one).is_dir() or Path(one).read_bytes())
    return False


def _worked(act: Callable[[], object]) -> bool:
    try:
        act()
    except (OSError, ValueError):  # Python raises ValueError for a limit that may not be raised
        return False
    return True


def _for_ever() -> None:
    while True:
        pass


def _pipes() -> list[int]:
    return [fd for fd in range(3, 64) if _is_pipe(fd)]


def _is_pipe(fd: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:")  # noqa: PTH115
    except OSError:
        return False


def _talk(data: bytes) -> None:
    for fd in _pipes():
        os.write(fd, data)


def _flood() -> None:
    while True:
        _talk((1 << 16).to_bytes(4, "big") + b" " * (1 << 16))


def _tell_folder() -> None:
    print(os.listdir("."), flush=True)  # noqa: PTH208, T201
    os._exit(9)


def _leave() -> None:
    for name in ("SIGTERM", "SIGHUP", "SIGINT"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    os.setpgid(0, 0) if os.getpgrp() != os.getpid() else None
    for fd in _pipes():
        os.close(fd)
    _for_ever()


class HostileDriver:
    """See `drivers.contract.base.Driver`."""

    name = "hostile"

    def preload(self) -> tuple[str, ...]:
        return ()

    def units(self) -> tuple[UnitInfo, ...]:
        return ()

    def load_only(self, order: WorkOrder) -> Iterator[Event]:
        Path(order.model).read_bytes()
        yield LoadReport(1, None, None)

    def run(self, order: WorkOrder) -> Iterator[Event]:
        document = json.loads(Path(order.model).read_bytes()) | {"model": order.model}
        yield from self.load_only(order)
        yield ModelDescription("CPU (Hostile)", self.name, "", (), 1, {}, {}, 0)
        if document.get("do"):
            manifests(document)[document["do"]]()
        yield MeasureReport((1,) * order.runs, (), 0.0, 0.0, None, 0, None)
        acts = tries(document)
        if document.get("try"):
            yield RunFindings(
                {f"act_{place}": float(_worked(acts[name])) for place, name in enumerate(document["try"])}
            )
        if document.get("hold"):
            name = document["hold"]
            yield RunFindings({"held_mib": holding.hold(name) / MIB})
        if document.get("read"):
            yield RunFindings(
                {f"read_{place}": float(_readable(path)) for place, path in enumerate(document["read"])}
            )
        yield CheckReport(None, "", None, None, "nothing to compare with")


if __name__ == "__main__":
    zygote.serve(socket.socket(fileno=int(sys.argv[1])), HostileDriver(), Tier(sys.argv[4]), int(sys.argv[5]))
