"""Windows: a job object around the child. It bounds memory and processes and ends what is left when the child ends; what the child
may read, write and reach stays open, so the tier is `none`.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

_EXTENDED: Final = 9  # JobObjectExtendedLimitInformation
ACTIVE_PROCESS, PROCESS_MEMORY = 0x0008, 0x0100
DIE_ON_UNHANDLED_EXCEPTION, KILL_ON_JOB_CLOSE = 0x0400, 0x2000


class Basic(ctypes.Structure):
    """JOBOBJECT_BASIC_LIMIT_INFORMATION."""

    _fields_ = (
        ("process_time", ctypes.c_int64),
        ("job_time", ctypes.c_int64),
        ("flags", ctypes.c_uint32),
        ("least_working_set", ctypes.c_size_t),
        ("most_working_set", ctypes.c_size_t),
        ("processes", ctypes.c_uint32),
        ("affinity", ctypes.c_size_t),
        ("priority", ctypes.c_uint32),
        ("scheduling", ctypes.c_uint32),
    )


class Extended(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

    _fields_ = (
        ("basic", Basic),
        ("io", ctypes.c_uint64 * 6),
        ("process_memory", ctypes.c_size_t),
        ("job_memory", ctypes.c_size_t),
        ("peak_process_memory", ctypes.c_size_t),
        ("peak_job_memory", ctypes.c_size_t),
    )


def limits(memory_bytes: int | None) -> Extended:
    """What the job is limited to: one process, its memory if that is given, and an end together."""
    told = Extended()
    told.basic.flags = ACTIVE_PROCESS | DIE_ON_UNHANDLED_EXCEPTION | KILL_ON_JOB_CLOSE
    told.basic.processes = 1
    if memory_bytes is not None:
        told.basic.flags |= PROCESS_MEMORY
        told.process_memory = memory_bytes
    return told


def system_library() -> Any:
    """Where the calls are."""
    return ctypes.CDLL("kernel32", use_last_error=True)


def enter_job(memory_bytes: int | None, kernel: Any = None) -> None:
    """Put this process into a job of its own. The handle is kept open on purpose: the job ends with this process.

    `kernel`: the system's library, or a double of it. Raises OSError.
    """
    kernel = kernel or system_library()
    kernel.CreateJobObjectW.restype = ctypes.c_void_p
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    job = ctypes.c_void_p(kernel.CreateJobObjectW(None, None))
    told = limits(memory_bytes)
    size = ctypes.c_uint32(ctypes.sizeof(told))
    if not (
        job.value
        and kernel.SetInformationJobObject(job, _EXTENDED, ctypes.byref(told), size)
        and kernel.AssignProcessToJobObject(job, ctypes.c_void_p(kernel.GetCurrentProcess()))
    ):
        raise OSError("this process cannot be put into a job of its own")
