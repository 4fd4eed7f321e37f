"""onnxruntime's C interface as this process has it: opened when this module is imported, before the process is shut in.

Importing it makes the runtime's environment (20 ms and 10 MB that no launch then pays for), but no thread and no session, so a zygote
may; what is here was proved by `native.prepare` before.
"""

from __future__ import annotations

from typing import Final

from drivers.contract.base import Unfit
from drivers.contract.boot import folder
from drivers.native import library, ort_api
from drivers.onnx import session as edge


def opened() -> ort_api.Runtime | None:
    """The runtime by its C interface, None where `prepare` has not proved it here."""
    there = library.found(folder())
    if there is None:
        return None
    try:
        runtime = ort_api.Runtime(there.library, there.loop)
        runtime.start()
    except (OSError, ort_api.NativeError):
        return None
    return runtime


RUNTIME: Final = opened()


def open_session(runtime: ort_api.Runtime, model: str, threads: int) -> ort_api.NativeSession:
    """See `onnx_session.open_session`. Raises `Unfit` or `OutOfMemory` in plain words."""
    try:
        return runtime.open(model, threads)
    except UnicodeDecodeError as why:
        raise Unfit("the model has a name that is not in UTF-8") from why
    except ort_api.NativeError as why:
        raise edge.plain_words(why) from why
