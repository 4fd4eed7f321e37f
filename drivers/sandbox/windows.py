"""Windows: a job object around the child. It limits memory and processes, and kills what is left when the child ends. It does not restrict
what the child reads, writes and reaches, so the tier is `none`."""

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
    """The limits of the job: one process, and its memory if given. All of the job is killed together."""
    information = Extended()
    information.basic.flags = ACTIVE_PROCESS | DIE_ON_UNHANDLED_EXCEPTION | KILL_ON_JOB_CLOSE
    information.basic.processes = 1
    if memory_bytes is not None:
        information.basic.flags |= PROCESS_MEMORY
        information.process_memory = memory_bytes
    return information


def system_library() -> Any:
    return ctypes.CDLL("kernel32", use_last_error=True)


def enter_job(memory_bytes: int | None, kernel: Any = None) -> None:
    """Put this process into a job of its own. The handle stays open on purpose: the job ends with this process.

    `kernel`: the system's library, or a test double. Raises OSError.
    """
    kernel = kernel or system_library()
    kernel.CreateJobObjectW.restype = ctypes.c_void_p
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    job = ctypes.c_void_p(kernel.CreateJobObjectW(None, None))
    information = limits(memory_bytes)
    size = ctypes.c_uint32(ctypes.sizeof(information))
    if not (
        job.value
        and kernel.SetInformationJobObject(job, _EXTENDED, ctypes.byref(information), size)
        and kernel.AssignProcessToJobObject(job, ctypes.c_void_p(kernel.GetCurrentProcess()))
    ):
        raise OSError("this process cannot be put into a job of its own")
