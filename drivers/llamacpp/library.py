"""llama.cpp as llama-cpp-python ships it: imported once, silent, with the last lines of its log kept."""

from __future__ import annotations

import ctypes
import importlib
from collections import deque
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from drivers.contract.base import Unfit
from drivers.llamacpp.units import GgmlDevice

INSTALL: Final = "python -m pip install 'sark-node[llamacpp]'"
ERROR: Final = 4
"""`GGML_LOG_LEVEL_ERROR`."""
MAX_LINES: Final = 2000
MAX_LINE: Final = 500


class LlamaLog:
    """Log of llama.cpp: its last lines of other levels, and its last errors."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=MAX_LINES)
        self.errors: deque[str] = deque(maxlen=8)

    def take(self, level: int, text: bytes, _: object) -> None:
        """Take a message; called by the library."""
        line = text[:MAX_LINE].decode(errors="replace").strip()
        if line:
            (self.errors if level == ERROR else self.lines).append(line)

    def clear(self) -> None:
        self.lines.clear()
        self.errors.clear()

    def why(self) -> str:
        """The latest failure: the first error, which is the most precise, without the name of the function that it comes from."""
        said = self.errors[0] if self.errors else "it gives no reason"
        return said.partition(": ")[2] or said


LOG: Final = LlamaLog()
_KEPT: Final[list[object]] = []
"""Callbacks that the library refers to by bare pointers."""


@cache
def runtime() -> Any:
    """The module with llama.cpp's functions, ready to load models. Raises `Unfit` if it is not installed."""
    try:
        lib = importlib.import_module("llama_cpp.llama_cpp")
    except (ImportError, OSError, RuntimeError) as why:
        raise Unfit(f"llama-cpp-python cannot be imported: {why}; {INSTALL}") from why
    callback = lib.llama_log_callback(LOG.take)
    lib.llama_log_set(callback, None)
    _KEPT.append(callback)
    lib.llama_backend_init()
    return lib


def version(lib: Any) -> str:
    """Version, such as `llama.cpp b6800 (llama-cpp-python 0.3.36)`."""
    own = lib.llama_version().decode(errors="replace") if hasattr(lib, "llama_version") else ""
    return f"llama.cpp {own} (llama-cpp-python {importlib.import_module('llama_cpp').__version__})".replace(
        "  ", " "
    )


class Ggml:
    """The devices of ggml, for which llama-cpp-python has no functions."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def devices(self) -> Iterator[tuple[int, GgmlDevice]]:
        """Each device with its `ggml_backend_dev_type`."""
        count, get, kind = (
            self._typed(f"ggml_backend_dev_{name}", result, *arguments)
            for name, result, *arguments in (
                ("count", ctypes.c_size_t),
                ("get", ctypes.c_void_p, ctypes.c_size_t),
                ("type", ctypes.c_int, ctypes.c_void_p),
            )
        )
        name = self._typed("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
        described = self._typed("ggml_backend_dev_description", ctypes.c_char_p, ctypes.c_void_p)
        for index in range(count()):
            handle = get(index)
            yield kind(handle), GgmlDevice(handle, name(handle).decode(), described(handle).decode())

    def _typed(self, name: str, result: Any, *arguments: Any) -> Any:
        function = getattr(self._library, name)
        function.restype, function.argtypes = result, list(arguments)
        return function


def ggml() -> Ggml:
    """Devices of the library that llama.cpp computes with."""
    return Ggml(importlib.import_module("llama_cpp._ggml").libggml)
