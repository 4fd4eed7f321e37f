"""Landlock: limits the files that a process may read and write, permanently and without any privilege."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from typing import Final

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same number on every kind of processor
_ASK_VERSION: Final = 1
_BENEATH: Final = 1

READ_FILE, READ_DIR = 1 << 2, 1 << 3
WRITE_FILE, TRUNCATE, IOCTL_DEV = 1 << 1, 1 << 14, 1 << 15
EXECUTE, REMOVE, MAKE, REFER = 1 << 0, 3 << 4, 0b1111111 << 6, 1 << 13
OF_FILES: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""Rights that a rule on a file, as opposed to a folder, may grant."""
READ: Final = READ_FILE | READ_DIR
WRITE: Final = READ | WRITE_FILE | TRUNCATE | REMOVE | MAKE | REFER
DEVICE: Final = READ | WRITE_FILE | IOCTL_DEV
TCP: Final = 0b11
"""Rights to bind and to connect."""
SCOPES: Final = 0b11
"""Forbids abstract sockets of processes outside, and signals to them."""


def known_rights(version: int) -> int:
    """The rights on files that a Landlock version knows; a process loses all of them that no rule grants."""
    rights = EXECUTE | WRITE_FILE | READ | REMOVE | MAKE
    for since, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)):
        rights |= right if version >= since else 0
    return rights


def ruleset(version: int, network: bool) -> bytes:
    """The kernel's `landlock_ruleset_attr`: everything that a version can restrict."""
    words = [known_rights(version)]
    if version >= 4:
        words.append(0 if network else TCP)
    if version >= 6:
        words.append(SCOPES)
    return struct.pack(f"={len(words)}Q", *words)


def rule(version: int, rights: int, is_folder: bool, fd: int) -> bytes:
    """The kernel's `landlock_path_beneath_attr` for an open path."""
    rights &= known_rights(version)
    return struct.pack("=Qi", rights if is_folder else rights & OF_FILES, fd)


def version(libc: ctypes.CDLL) -> int:
    """The kernel's Landlock version, 0 for none."""
    return max(0, int(libc.syscall(_CREATE, None, 0, _ASK_VERSION)))


def restrict(libc: ctypes.CDLL, allowed: Iterable[tuple[str, int]], network: bool) -> None:
    """Remove all rights on files from this thread and those it starts, except `allowed`: (path, rights). Missing paths are skipped. Raises
    OSError without Landlock. Call `no_new_privileges` first."""
    abi = version(libc)
    if not abi:
        raise OSError(ctypes.get_errno(), "Landlock")
    attributes = ruleset(abi, network)
    rules = int(libc.syscall(_CREATE, attributes, len(attributes), 0))
    if rules < 0:
        raise OSError(ctypes.get_errno(), "Landlock: rule set")
    try:
        for path, rights in allowed:
            try:
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                beneath = rule(abi, rights, stat.S_ISDIR(os.fstat(fd).st_mode), fd)
                if libc.syscall(_ADD, rules, _BENEATH, beneath, 0):
                    raise OSError(ctypes.get_errno(), f"Landlock: {path}")
            finally:
                os.close(fd)
        if libc.syscall(_RESTRICT, rules, 0):
            raise OSError(ctypes.get_errno(), "Landlock")
    finally:
        os.close(rules)
