"""Ways to hold kernel memory that no limit of a process counts. Each holds as much as it can, up to `ENOUGH`, in bytes.

Run in a hostile child (`tests.drivers.hostile_zygote`); `benchmarks/measuring/sandbox_memory.py` prints what each way holds on every tier.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Final

MIB: Final = 1 << 20
ENOUGH: Final = 96 * MIB
PIECE: Final = bytes(MIB)
HELD: list[object] = []
"""Objects that must stay alive until the end."""
LIBC: Final = ctypes.CDLL(None, use_errno=True)


def _until_refused(step: Callable[[], int]) -> int:
    held = 0
    with contextlib.suppress(OSError, ValueError, MemoryError):
        while held < ENOUGH:
            if not (more := step()):
                break
            held += more
    return held


def _fill(fd: int) -> int:
    os.set_blocking(fd, False)
    held = 0
    with contextlib.suppress(BlockingIOError):
        while held < ENOUGH:
            held += os.write(fd, PIECE)
    return held


def socket_pairs() -> int:
    """Socket pairs with both ends filled, with the largest buffers that the system allows."""

    def step() -> int:
        ends = socket.socketpair()
        HELD.append(ends)
        for end in ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
        return sum(_fill(end.fileno()) for end in ends)

    return _until_refused(step)


def pipes() -> int:
    """Full pipes of the largest size."""

    def step() -> int:
        ends = os.pipe()
        HELD.append(ends)
        with contextlib.suppress(OSError):
            fcntl.fcntl(ends[1], 1031, MIB)
        return _fill(ends[1])

    return _until_refused(step)


def shared_memory() -> int:
    """Shared memory of which all but one page is unmapped: the kernel keeps all of it."""
    LIBC.mmap.restype = ctypes.c_void_p
    LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)

    def step() -> int:
        size = 8 * MIB
        place = LIBC.mmap(
            None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, -1, 0
        )
        if place in (None, ctypes.c_void_p(-1).value):
            return 0
        ctypes.memset(place, 1, size)
        LIBC.munmap(place + mmap.PAGESIZE, size - mmap.PAGESIZE)
        return size

    return _until_refused(step)


def zero_device() -> int:
    """Shared memory through a mapping of /dev/zero."""
    held = 0
    with contextlib.suppress(OSError), open("/dev/zero", "r+b") as device:  # noqa: PTH123
        memory = mmap.mmap(device.fileno(), 8 * MIB, mmap.MAP_SHARED)
        HELD.append(memory)
        held = memory.write(PIECE)
    return ENOUGH if held else 0


def memory_files() -> int:
    """Files in memory, without a path."""

    def step() -> int:
        file = os.memfd_create("hold")
        HELD.append(file)
        return os.write(file, PIECE)

    return _until_refused(step)


def gifts_to_pipes() -> int:
    """Pages given to pipes, then unmapped."""
    LIBC.vmsplice.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)

    def step() -> int:
        ends = os.pipe()
        HELD.append(ends)
        memory = mmap.mmap(-1, 16 * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.write(b"\1" * len(memory))
        part = (ctypes.c_char * len(memory)).from_buffer(memory)
        given = LIBC.vmsplice(ends[1], struct.pack("=QQ", ctypes.addressof(part), len(memory)), 1, 2)
        del part
        memory.close()
        return max(0, given)

    return _until_refused(step)


def file_events() -> int:
    """File events that nobody reads: the kernel keeps their names."""
    name, length = "n" * 250, 320
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY))

    def step() -> int:
        watcher = LIBC.inotify_init1(os.O_NONBLOCK)
        if watcher < 0 or LIBC.inotify_add_watch(watcher, b".", 0xFFF) < 0:
            return 0
        HELD.append(watcher)
        other = f"{name[:-1]}m"
        for _ in range(4096):  # no two consecutive events are alike
            os.rename(name, other)  # noqa: PTH104
            os.rename(other, name)  # noqa: PTH104
        return 4 * 4096 * length

    return _until_refused(step)


def file_locks() -> int:
    """Locks on every second byte, 200 bytes each."""
    file = os.open("locked", os.O_CREAT | os.O_RDWR)
    HELD.append(file)
    count = 0
    with contextlib.suppress(OSError):
        for count in range(8192):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 2 * count)
    return ENOUGH if count > 8000 else 0


def landlock_rules() -> int:
    """Rule sets that no process enters, 64 bytes per rule."""

    def step() -> int:
        rules = LIBC.syscall(444, struct.pack("=Q", 4), 8, 0)
        if rules < 0:
            return 0
        HELD.append(rules)
        return ENOUGH

    return _until_refused(step)


def timers() -> int:
    """Timers that never fire, 600 bytes each with their signal."""
    held = 0
    made = ctypes.c_void_p()
    while held < ENOUGH and not LIBC.timer_create(1, None, ctypes.byref(made)):
        held += 600
    return held


def rings() -> int:
    """Queues of asynchronous I/O: io_uring or AIO."""
    made = ctypes.create_string_buffer(256)
    old, new = (206, 425) if os.uname().machine == "x86_64" else (0, 425)
    context = ctypes.c_ulong(0)
    if LIBC.syscall(new, 1024, made) >= 0 or LIBC.syscall(old, 1024, ctypes.byref(context)) >= 0:
        return ENOUGH
    return 0


def system_v() -> int:
    """System V segments and queues, which outlive their process."""
    if LIBC.shmget(0, MIB, 0o1600) >= 0 or LIBC.msgget(0, 0o1600) >= 0:
        return ENOUGH
    return 0


def message_queues() -> int:
    """POSIX message queues, by system call because not every library wraps them."""
    number = 240 if os.uname().machine == "x86_64" else 180
    return ENOUGH if LIBC.syscall(number, b"hold", os.O_CREAT | os.O_RDWR, 0o600, None) >= 0 else 0


def waiting_files() -> int:
    """epoll and eventfd: every watcher watches every file, 160 bytes each."""
    import select

    files: list[int] = []
    watchers: list[select.epoll] = []
    with contextlib.suppress(OSError):
        while len(files) < 120:
            files.append(os.eventfd(0))
            watchers.append(select.epoll())
    HELD.append((files, watchers))
    held = 0
    with contextlib.suppress(OSError):
        for watcher in watchers:
            for file in files:
                watcher.register(file)
                held += 160
    return held


WAYS: Final[Mapping[str, Callable[[], int]]] = {
    way.__name__.replace("_", " "): way
    for way in (
        *(
            socket_pairs,
            pipes,
            shared_memory,
            zero_device,
            memory_files,
            gifts_to_pipes,
            file_events,
            file_locks,
        ),
        *(landlock_rules, timers, rings, system_v, message_queues, waiting_files),
    )
}


def hold(name: str) -> int:
    """Bytes that one way holds, or 0 if it is refused."""
    try:
        return WAYS[name]()
    except (OSError, ValueError, AttributeError):
        return 0
