"""onnxruntime's C interface as this process has it: opened when this module is imported, before the process is shut in.

Importing it makes the runtime's environment (20 ms and 10 MB that no launch then pays for), but no thread and no session, so a zygote
may; what is here was proved by `native.prepare` before.
"""

from __future__ import annotations

from typing import Final

from drivers import native, native_ort
from drivers import onnx_session as edge
from drivers.base import Unfit


def opened() -> native_ort.Runtime | None:
    """The runtime by its C interface, None where `prepare` has not proved it here."""
    there = native.found(native.folder())
    if there is None:
        return None
    try:
        runtime = native_ort.Runtime(there.library, there.loop)
        runtime.start()
    except (OSError, native_ort.NativeError):
        return None
    return runtime


RUNTIME: Final = opened()


def open_session(runtime: native_ort.Runtime, model: str, threads: int) -> native_ort.Session:
    """See `onnx_session.open_session`. Raises `Unfit` or `OutOfMemory` in plain words."""
    try:
        return runtime.open(model, threads)
    except UnicodeDecodeError as why:
        raise Unfit("the model has a name that is not in UTF-8") from why
    except native_ort.NativeError as why:
        raise edge.plain_words(why) from why
