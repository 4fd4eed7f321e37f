"""The native loop on this device: compiled once by its own compiler, proved on a tiny model, found again by every launch.

    parent:  prepare(folder())      before the first launch; later calls only look. Never in a child that measures.
    child:   found(folder())        what there is: the compiled loop, calls by ctypes, or nothing (then IO binding is used)

What lies there is named by a hash over its source, the compiler, the machine, the runtime's library and our calls into it, so
that a change of any makes it anew. Nothing of a task has a part in it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("native_loop.c")
CALLS: Final = (Path(__file__).with_name("ort_api.py"), Path(__file__).with_name("loop.py"))
COMPILERS: Final = ("cc", "gcc", "clang")
COMPILE_S: Final = 60.0
LOOP: Final = "loop"
CALLS_ONLY: Final = "ctypes"
NOTHING: Final = "no"
"""What a proof may say: the compiled loop gave the right answer, the calls alone did, neither."""
LIBRARIES: Final = ("libonnxruntime.so*", "libonnxruntime*.dylib", "onnxruntime.dll")
TINY_MODEL: Final = bytes.fromhex(
    "08083a350a0e0a01780a017812017922034164641201745a0f0a0178120a0a08"
    "080112040a020801620f0a0179120a0a08080112040a02080142040a00100d"
)
"""y = x + x on one float, as bytes."""


@dataclass(frozen=True, slots=True)
class Native:
    """What a launch may use. `loop` None: no compiler here, the calls are made by ctypes."""

    library: Path
    loop: Path | None


@cache
def library() -> Path | None:
    """onnxruntime's C library inside its package, without importing it; None where it has none."""
    spec = find_spec("onnxruntime")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for pattern in LIBRARIES:
            named = sorted(Path(place, "capi").glob(pattern))
            if named:
                return named[0]
    return None


@cache
def runtime_version() -> str:
    """Of the installed package, whichever of its distributions that is; empty where there is none."""
    for name in ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""


def compiler(which: Callable[[str], str | None] = shutil.which) -> str | None:
    """The device's own C compiler, if any."""
    return next((path for name in COMPILERS if (path := which(name))), None)


def key(runtime: Path, compiled_by: str | None) -> str:
    """Name of what is made here from this source by this compiler for this library."""
    told = [
        *(path.read_bytes() for path in (SOURCE, *CALLS)),
        f"{sys.platform} {platform.machine()}".encode(),
    ]
    for path in (str(runtime), compiled_by):
        if path is not None:
            real = os.path.realpath(path)
            state = os.stat(real)  # noqa: PTH116
            told.append(f"{real} {state.st_size} {state.st_mtime_ns}".encode())
    return hashlib.sha256(b"\0".join(told)).hexdigest()[:24]


def found(where: Path, which: Callable[[str], str | None] = shutil.which) -> Native | None:
    """What `prepare` has proved, for this very installation. None: nothing, or a folder that others may write to."""
    runtime, compiled_by = library(), compiler(which)
    if runtime is None:
        return None
    named = where / key(runtime, compiled_by)
    try:
        if not (_ours(where) and _ours(proof := named.with_suffix(".proved"))):
            return None
        told = proof.read_text("ascii")
        loop = named.with_suffix(".so")
        if told == LOOP and _ours(loop):
            return Native(runtime, loop)
    except (OSError, UnicodeDecodeError):
        return None
    return Native(runtime, None) if told == CALLS_ONLY else None


def _ours(path: Path) -> bool:
    """Whether nobody but its owner, who is us (or the superuser), can have written it. Windows: by where it lies."""
    state = path.lstat()
    if sys.platform == "win32":
        return True
    return state.st_uid in (os.getuid(), 0) and not state.st_mode & 0o022 and not stat.S_ISLNK(state.st_mode)


def prepare(where: Path, which: Callable[[str], str | None] = shutil.which) -> Native | None:
    """Compile and prove what is not there yet; about a second the first time. None where it cannot be had or fails its proof, and in a
    folder that others may write to.

    Several nodes may do this at once: each makes its own and moves it into place.
    """
    runtime, compiled_by = library(), compiler(which)
    if runtime is None:
        return None
    try:
        where.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _ours(where):  # what is compiled there is run at once, to be proved
            return None
        proof = where / f"{key(runtime, compiled_by)}.proved"
        if not proof.exists():
            with tempfile.TemporaryDirectory(dir=where) as made:
                told = _make(runtime, compiled_by, Path(made), proof)
                _put(Path(made) / "proof", told.encode("ascii"), proof)
    except OSError:
        return None
    return found(where, which)


def _make(runtime: Path, compiled_by: str | None, made: Path, proof: Path) -> str:
    """What to write into `proof`; a loop that was proved then lies beside it."""
    model = made / "tiny.onnx"
    model.write_bytes(TINY_MODEL)
    if compiled_by is not None:
        loop = made / "loop.so"
        command = [compiled_by, "-O2", "-fPIC", "-shared", "-o", str(loop), str(SOURCE)]
        if _succeeds(command, made) and _proved(runtime, loop, model, made):
            loop.chmod(0o500)
            loop.replace(proof.with_suffix(".so"))
            return LOOP
    return CALLS_ONLY if _proved(runtime, None, model, made) else NOTHING


def _proved(runtime: Path, loop: Path | None, model: Path, made: Path) -> bool:
    """Whether the very calls that will be measured give the right answer, in a process of their own."""
    from drivers.contract.boot import boot_command

    arguments = (str(runtime), str(loop or ""), str(model), runtime_version().partition("+")[0])
    return _succeeds(boot_command("native.loop", *arguments), made)


def _succeeds(command: list[str], cwd: Path) -> bool:
    environ = {**os.environ, "ORT_DISABLE_TELEMETRY": "1"}
    try:
        ended = subprocess.run(
            command, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMPILE_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0


def _put(temporary: Path, content: bytes, place: Path) -> None:
    temporary.write_bytes(content)
    temporary.chmod(0o400)
    temporary.replace(place)
