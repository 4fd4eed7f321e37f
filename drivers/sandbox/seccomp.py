"""Which system calls a child may make: a classic BPF program for the kernel, built here and installed for good.

Calls that are not listed are allowed, because runtimes differ. Listed are calls that reach beyond the process or expose much of the kernel.
They fail with EPERM if a harmless library may try them and can do without; they end the process with SIGSYS if nothing harmless calls them,
so that the row says why.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Final


class Condition(StrEnum):
    """When a call is refused, depending on one of its arguments (the low 32 bits)."""

    ALWAYS = "always"
    UNLESS = "unless it is one of"
    WHEN = "when it is one of"
    WITHOUT = "without the bit"
    WITH_ALL = "with all of the bits"


@dataclass(frozen=True, slots=True)
class Rule:
    """One call by its number on (x86-64, arm64); None if it does not exist there."""

    name: str
    numbers: tuple[int | None, int | None]
    fatal: bool = False
    condition: Condition = Condition.ALWAYS
    argument: int = 0
    values: tuple[int, ...] = ()


ARCHITECTURES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Machine by `uname` → its column in a rule, its AUDIT_ARCH."""
X32: Final = 0x40000000
AF_UNIX: Final = 1
CLONE_THREAD: Final = 0x10000
PR_SET_PDEATHSIG, PR_SET_SECCOMP = 1, 22
TIOCSTI: Final = 0x5412
TIOCLINUX: Final = 0x541C
FIOSETOWN: Final = 0x8901
SIOCSPGRP: Final = 0x8902
F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY = 8, 10, 15, 1024, 1026
F_LOCKS: Final = (6, 7, 37, 38)
F_SETPIPE_SZ: Final = 1031
SO_BUFFERS: Final = (7, 8, 32, 33)
"""SO_SNDBUF, SO_RCVBUF and the forced variants of both."""
MAP_SHARED_ANONYMOUS: Final = 0x21


# Calls by subject, each with its number on x86-64 and arm64: one number for both since 424, `-` if it does not exist.
_FATAL: Final = """
    ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, pidfd_getfd 438
    mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, setns 308 268
    open_tree 428, move_mount 429, fsopen 430, fsconfig 431, fsmount 432, fspick 433, mount_setattr 442, open_tree_attr 467
    bpf 321 280, open_by_handle_at 304 265, kexec_load 246 104, kexec_file_load 320 294
    init_module 175 105, finit_module 313 273, delete_module 176 106
    reboot 169 142, swapon 167 224, swapoff 168 225, acct 163 89, iopl 172 -, ioperm 173 -
    sethostname 170 161, setdomainname 171 162, settimeofday 164 170, clock_settime 227 112
"""
_REFUSED: Final = """
    unshare 272 97, fork 57 -, vfork 58 -, execve 59 221, execveat 322 281
    io_uring_setup 425, io_uring_enter 426, io_uring_register 427
    userfaultfd 323 282, perf_event_open 298 241, kcmp 312 272, modify_ldt 154 -, personality 135 92
    add_key 248 217, request_key 249 218, keyctl 250 219, syslog 103 116, vhangup 153 58
    pidfd_open 434, pidfd_send_signal 424, process_madvise 440, process_mrelease 448, migrate_pages 256 238
    clock_adjtime 305 266, adjtimex 159 171, quotactl 179 60, quotactl_fd 443
    name_to_handle_at 303 264, fanotify_init 300 262, fanotify_mark 301 263, lookup_dcookie 212 18, mknod 133 -, mknodat 259 33
    setuid 105 146, setgid 106 144, setreuid 113 145, setregid 114 143, setresuid 117 147, setresgid 119 149
    setfsuid 122 151, setfsgid 123 152, setgroups 116 159, capset 126 91
    shmget 29 194, semget 64 190, msgget 68 186, mq_open 240 180, memfd_secret 447
    tkill 200 130, ioprio_set 251 30
"""
_HOLDING: Final = """
    landlock_create_ruleset 444, landlock_add_rule 445, landlock_restrict_self 446, seccomp 317 277
    inotify_init 253 -, inotify_init1 294 26, vmsplice 278 75, splice 275 76, tee 276 77, io_setup 206 0
"""
"""Calls that hold kernel memory that no limit of a process counts: rules, events, pages of pipes, rings."""
_LOCAL_SOCKETS: Final = "socketpair 53 199"
"""A pair holds up to four times `wmem_max`; 128 pairs held 1.7 GiB."""
_OF_FILES: Final = """
    truncate 76 45, chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452
    chown 92 -, fchown 93 55, lchown 94 -, fchownat 260 54
    setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7, setxattrat 463
    removexattr 197 14, lremovexattr 198 15, fremovexattr 199 16, removexattrat 466
    file_setattr 469, utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88
"""
"""Calls that Landlock allows on every file of the same user: modes, owners, attributes, times; before its version 3 also the length."""
CLONE3: Final = 435
"""Fails with ENOSYS: its flags are behind a pointer. The C library then uses `clone`, whose flags a filter can read."""


def _read(table: str, *, fatal: bool = False) -> list[Rule]:
    rules = []
    for call in table.replace("\n", ",").split(","):
        if call.strip():
            name, *numbers = call.split()
            first, last = (None if number == "-" else int(number) for number in (numbers[0], numbers[-1]))
            rules.append(Rule(name, (first, last), fatal))
    return rules


def rules(pid: int, network: bool, gpu: bool, in_view: bool = True) -> tuple[Rule, ...]:
    """The calls refused to process `pid`. `network`: it may open any socket. `gpu`: it may create memory files, shared memory and local
    sockets, because it has no memory limit. `in_view`: it sees only its own files; otherwise it may not change the attributes of files."""
    rules_ = [*_read(_FATAL, fatal=True), *_read(_REFUSED), *_read(_HOLDING)]
    of_fcntl: tuple[int, ...] = (F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ)
    if not gpu:  # such memory remains when all but a page of it is unmapped, and then no limit counts it
        shared = (MAP_SHARED_ANONYMOUS,)
        rules_.append(Rule("mmap", (9, 222), condition=Condition.WITH_ALL, argument=3, values=shared))
        rules_.append(Rule("memfd_create", (319, 279)))
        of_fcntl += F_LOCKS
    if not in_view:
        rules_ += _read(_OF_FILES)
    if not network:
        local = (AF_UNIX,) if gpu else ()
        rules_.append(Rule("socket", (41, 198), condition=Condition.UNLESS, values=local))
    if not (network or gpu):
        rules_ += _read(_LOCAL_SOCKETS)
    own = (pid,)
    return (
        *rules_,
        Rule("clone", (56, 220), condition=Condition.WITHOUT, values=(CLONE_THREAD,)),
        Rule("kill", (62, 129), condition=Condition.UNLESS, values=own),
        Rule("tgkill", (234, 131), condition=Condition.UNLESS, values=own),
        Rule("rt_sigqueueinfo", (129, 138), condition=Condition.UNLESS, values=own),
        Rule("rt_tgsigqueueinfo", (297, 240), condition=Condition.UNLESS, values=own),
        Rule("prlimit64", (302, 261), condition=Condition.UNLESS, values=(0, *own)),
        Rule("setpriority", (141, 140), condition=Condition.UNLESS, values=(0,)),
        Rule("prctl", (157, 167), condition=Condition.WHEN, values=(PR_SET_PDEATHSIG, PR_SET_SECCOMP)),
        Rule("setsockopt", (54, 208), condition=Condition.WHEN, argument=2, values=SO_BUFFERS),
        Rule(
            "ioctl",
            (16, 29),
            condition=Condition.WHEN,
            argument=1,
            values=(TIOCSTI, TIOCLINUX, FIOSETOWN, SIOCSPGRP),
        ),
        # a file that becomes ready can send its owner any signal
        Rule("fcntl", (72, 25), condition=Condition.WHEN, argument=1, values=of_fcntl),
    )


# -- the program -----------------------------------------------------------------------------------------------------------

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
ALLOW, KILL = 0x7FFF0000, 0x80000000
REFUSE: Final = 0x00050000 | errno.EPERM
ABSENT: Final = 0x00050000 | 38  # ENOSYS
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in the kernel's seccomp_data


def _op(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, k)


def _body(rule: Rule) -> list[bytes]:
    """The instructions to run once the number matches."""
    refuse = _op(_RETURN, KILL if rule.fatal else REFUSE)
    if rule.condition is Condition.ALWAYS:
        return [refuse]
    load = _op(_LOAD, _ARGUMENTS + 8 * rule.argument)
    if rule.condition is Condition.WITHOUT:
        return [load, _op(_ANY_BIT, rule.values[0], 1, 0), refuse, _op(_RETURN, ALLOW)]
    if rule.condition is Condition.WITH_ALL:
        bits = rule.values[0]
        return [load, _op(_AND, bits), _op(_EQUAL, bits, 0, 1), refuse, _op(_RETURN, ALLOW)]
    count = len(rule.values)
    tests = [_op(_EQUAL, value, count - place, 0) for place, value in enumerate(rule.values)]
    hit, miss = (
        (refuse, _op(_RETURN, ALLOW)) if rule.condition is Condition.WHEN else (_op(_RETURN, ALLOW), refuse)
    )
    return [load, *tests, miss, hit]


def program(machine: str, refused: Sequence[Rule]) -> bytes:
    """The filter for one kind of processor, in instructions of 8 bytes. Raises KeyError for other kinds."""
    column, word = ARCHITECTURES[machine]
    ops = [_op(_LOAD, _ARCH), _op(_EQUAL, word, 1, 0), _op(_RETURN, KILL), _op(_LOAD, _NUMBER)]
    if machine == "x86_64":
        ops += [_op(_AT_LEAST, X32, 0, 1), _op(_RETURN, KILL)]
    ops += [_op(_EQUAL, CLONE3, 0, 1), _op(_RETURN, ABSENT)]
    for rule in refused:
        number = rule.numbers[column]
        if number is not None:
            body = _body(rule)
            ops += [_op(_EQUAL, number, 0, len(body)), *body]
    ops.append(_op(_RETURN, ALLOW))
    return b"".join(ops)


# -- the kernel ------------------------------------------------------------------------------------------------------------

_SECCOMP: Final = {"x86_64": 317, "aarch64": 277}
_SET_FILTER, _ALL_THREADS, _NO_MITIGATION = 1, 1, 4
_PR_SET_NO_NEW_PRIVS: Final = 38


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def no_new_privileges(libc: ctypes.CDLL) -> None:
    """Forbid new privileges. Raises OSError."""
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")


@cache
def filter_for(pid: int, network: bool, gpu: bool, in_view: bool) -> bytes:
    """The filter for this machine. Raises OSError for other kinds of processor."""
    machine = os.uname().machine if sys.platform != "win32" else ""
    if machine not in ARCHITECTURES or sys.maxsize < 2**32:
        raise OSError(errno.ENOSYS, f"seccomp: no filter for processors of kind {machine}")
    return program(machine, rules(pid, network, gpu, in_view))


def install(libc: ctypes.CDLL, code: bytes) -> None:
    """Filter the calls of all threads of this process from now on. Raises OSError. Call `no_new_privileges` first.

    Leaves out the mitigation of speculative store bypass, which older kernels tie to a filter: it would slow the model down.
    """
    bpf = _Program(len(code) // 8, code)
    flags = _ALL_THREADS | _NO_MITIGATION
    if libc.syscall(_SECCOMP[os.uname().machine], _SET_FILTER, flags, ctypes.byref(bpf)):
        raise OSError(ctypes.get_errno() or errno.EBUSY, "seccomp")
