"""The native loop: compiled once by this device's compiler, verified with a tiny model, found by every launch.

    parent:  prepare(folder())      before the first launch; later calls only look. Never in a child that measures.
    child:   find(folder())         the compiled loop, calls by ctypes, or nothing (then IO binding is used)

The file's name is a hash over its source, the compiler, the machine, the runtime's library and our calls into it: it is compiled again when
any of these changes. Nothing in it depends on a task.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from drivers.contract.boot import boot_command

SOURCE: Final = Path(__file__).with_name("native_loop.c")
CALLS: Final = (Path(__file__).with_name("ort_api.py"), Path(__file__).with_name("loop.py"))
COMPILERS: Final = ("cc", "gcc", "clang")
COMPILE_S: Final = 60.0
LOOP: Final = "loop"
CALLS_ONLY: Final = "ctypes"
NOTHING: Final = "no"
"""Content of a proof file: the compiled loop works, only the calls through ctypes work, neither works."""
_VERSION: Final = re.compile(r"^__version__ *= *['\"]([^'\"]+)", re.MULTILINE)
LIBRARIES: Final = ("libonnxruntime.so*", "libonnxruntime*.dylib", "onnxruntime.dll")
TINY_MODEL: Final = bytes.fromhex(
    "08083a350a0e0a01780a017812017922034164641201745a0f0a0178120a0a08"
    "080112040a020801620f0a0179120a0a08080112040a02080142040a00100d"
)
"""The bytes of a model that computes y = x + x on one float."""


@dataclass(frozen=True, slots=True)
class Native:
    """The parts that a launch may use. `loop` None: there is no compiler, and the calls go through ctypes."""

    library: Path
    loop: Path | None


@cache
def library() -> Path | None:
    """onnxruntime's C library inside its package, without importing it."""
    spec = find_spec("onnxruntime")
    for package in (spec.submodule_search_locations or ()) if spec else ():
        for pattern in LIBRARIES:
            files = sorted(Path(package, "capi").glob(pattern))
            if files:
                return files[0]
    return None


def version_of(runtime: Path) -> str:
    """Version of the onnxruntime that this C library belongs to; empty: unknown. Several distributions write the same files, and only the
    files show which distribution was installed last."""
    try:
        text = runtime.with_name("build_and_package_info.py").read_text("utf-8", "replace")
    except OSError:
        return ""
    found = _VERSION.search(text)
    return "" if found is None else found[1].partition("+")[0]


def compiler(which: Callable[[str], str | None] = shutil.which) -> str | None:
    """This device's C compiler."""
    return next((path for name in COMPILERS if (path := which(name))), None)


def key(runtime: Path, compiled_by: str | None) -> str:
    """Hash of everything that the loop depends on."""
    parts = [
        *(path.read_bytes() for path in (SOURCE, *CALLS)),
        f"{sys.platform} {platform.machine()} {version_of(runtime)}".encode(),
    ]
    for path in (str(runtime), compiled_by):
        if path is not None:
            real = os.path.realpath(path)
            state = os.stat(real)  # noqa: PTH116
            parts.append(f"{real} {state.st_size} {state.st_mtime_ns}".encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]


def find(where: Path, which: Callable[[str], str | None] = shutil.which) -> Native | None:
    """The result of `prepare` for this installation. None: there is none, or others may write to the folder."""
    runtime, compiled_by = library(), compiler(which)
    if runtime is None:
        return None
    base = where / key(runtime, compiled_by)
    try:
        if not (_is_private(where) and _is_private(proof := base.with_suffix(".proved"))):
            return None
        result = proof.read_text("ascii")
        loop = base.with_suffix(".so")
        if result == LOOP and _is_private(loop):
            return Native(runtime, loop)
    except (OSError, UnicodeDecodeError):
        return None
    return Native(runtime, None) if result == CALLS_ONLY else None


def _is_private(path: Path) -> bool:
    """Whether only this user (or root) can have written it. Always true on Windows, where its location protects it."""
    state = path.lstat()
    if sys.platform == "win32":
        return True
    return state.st_uid in (os.getuid(), 0) and not state.st_mode & 0o022 and not stat.S_ISLNK(state.st_mode)


def prepare(where: Path, which: Callable[[str], str | None] = shutil.which) -> Native | None:
    """Compile and verify what is missing; takes about a second the first time. None if this fails, or if others may write to the folder.

    Several nodes may do this at once: each compiles its own loop and moves it into place.
    """
    runtime, compiled_by = library(), compiler(which)
    if runtime is None:
        return None
    try:
        where.mkdir(parents=True, exist_ok=True)
        if not _is_private(where):  # the compiled file is run at once
            return None
        with suppress(PermissionError):
            where.chmod(0o755)  # root's node runs models as nobody, who must read the folder
        proof = where / f"{key(runtime, compiled_by)}.proved"
        if not proof.exists():
            with tempfile.TemporaryDirectory(dir=where) as folder:
                result = _make(runtime, compiled_by, Path(folder), proof)
                temporary = Path(folder) / "proof"
                temporary.write_text(result, "ascii")
                temporary.chmod(0o444)
                temporary.replace(proof)
    except OSError:
        return None
    return find(where, which)


def _make(runtime: Path, compiled_by: str | None, folder: Path, proof: Path) -> str:
    """The content of `proof`; a loop that works is then stored next to it."""
    model = folder / "tiny.onnx"
    model.write_bytes(TINY_MODEL)
    if compiled_by is not None:
        loop = folder / "loop.so"
        command = [compiled_by, "-O2", "-fPIC", "-shared", "-o", str(loop), str(SOURCE)]
        if _succeeds(command, folder) and _proved(runtime, loop, model, folder):
            loop.chmod(0o555)
            loop.replace(proof.with_suffix(".so"))
            return LOOP
    return CALLS_ONLY if _proved(runtime, None, model, folder) else NOTHING


def _proved(runtime: Path, loop: Path | None, model: Path, folder: Path) -> bool:
    """Whether the calls that will be measured work, in a separate process."""
    arguments = (str(runtime), str(loop or ""), str(model), version_of(runtime))
    return _succeeds(boot_command("native.loop", *arguments), folder)


def _succeeds(command: list[str], cwd: Path) -> bool:
    environ = {**os.environ, "ORT_DISABLE_TELEMETRY": "1"}
    try:
        ended = subprocess.run(
            command, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMPILE_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0
