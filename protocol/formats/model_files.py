"""Determines the format of a model file from its bytes, and which formats can run code. Reads nothing but the model's own files.

A format that contains a program (TorchScript, `torch.export`) can do more than compute, so a device runs it only for users that its owner
knows, never for strangers. A plain pickle is never opened.
"""

from __future__ import annotations

import zipfile
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Final

TORCH: Final = "(Torch)"
"""The suffix of the Torch units' names."""
MAX_MEMBERS: Final = 100_000


class FormatError(ValueError):
    """The model is missing, unreadable or broken."""


class ModelFormat(StrEnum):
    """A model's format, in words for users."""

    TORCHSCRIPT = "TorchScript"
    EXPORTED = "torch.export program"
    SAFETENSORS = "safetensors"
    CHECKPOINT = "PyTorch checkpoint"
    PICKLE = "pickle"
    ZIP = "zip archive"
    MLPACKAGE = "mlpackage"
    DECLARED = "safetensors with a declaration"
    TFLITE = "LiteRT model"
    GGUF = "GGUF model"
    EXECUTORCH = "ExecuTorch program"
    OPENVINO = "OpenVINO model"
    TRANSFORMERS = "Transformers model"
    FOLDER = "folder"
    OTHER = "other file"


CODE_CARRYING_FORMATS: Final = frozenset({ModelFormat.TORCHSCRIPT, ModelFormat.EXPORTED})
"""Formats never run for strangers."""
PICKLE_FORMATS: Final = frozenset({ModelFormat.CHECKPOINT, ModelFormat.PICKLE})
"""Formats never opened."""
_PROGRAM_SUFFIXES: Final = frozenset({".pt", ".pt2", ".pth", ".ts", ".jit", ".bin", ".ckpt", ".pkl"})

_MAGIC: Final = (
    (0, b"GGUF", ModelFormat.GGUF),
    (4, b"TFL3", ModelFormat.TFLITE),
    (4, b"ET1", ModelFormat.EXECUTORCH),
)
"""Offset, the bytes there, and the format that has them."""
_EXPORT: Final = "export it to ONNX first"
_UNPACK: Final = "unpack it first"
_OTHER_FILE: Final = "give the model's file"
_PICKLE: Final = "a Python pickle, which could run any program"
_SIGNATURES: Final[tuple[tuple[int, bytes, str, str], ...]] = (
    (
        0,
        b"version https://git-lfs",
        "a Git LFS pointer, not the model itself",
        "run git lfs pull where it came from",
    ),
    *((0, bytes([0x80, version]), _PICKLE, _EXPORT) for version in range(2, 6)),
    (0, b"PK\x03\x04", "a zip archive (PyTorch and Keras files are too)", f"unpack it, or {_EXPORT}"),
    (0, b"\x1f\x8b", "a gzip archive", _UNPACK),
    (0, b"BZh", "a bzip2 archive", _UNPACK),
    (0, b"\xfd7zXZ\x00", "an xz archive", _UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "a zstd archive", _UNPACK),
    (257, b"ustar", "a tar archive", _UNPACK),
    (0, b"\x89HDF\r\n", "an HDF5 file (Keras)", _EXPORT),
    (0, b"\x93NUMPY", "a NumPy array", _OTHER_FILE),
    (0, b"\x7fELF", "a program", _OTHER_FILE),
    (0, b"MZ", "a program", _OTHER_FILE),
    (0, b"#!", "a script", _OTHER_FILE),
    (0, b"\x89PNG", "an image", _OTHER_FILE),
    (0, b"\xff\xd8\xff", "an image", _OTHER_FILE),
    (0, b"%PDF", "a PDF document", _OTHER_FILE),
)
"""Offset, the bytes there, what the file is, what to do."""


def has_program_suffix(name: str) -> bool:
    """Whether a file of this name usually contains a program or a pickle. The driver checks the bytes."""
    return PurePosixPath(name.lower()).suffix in _PROGRAM_SUFFIXES


def may_run_code(unit: str, name: str) -> bool:
    """Whether strangers may not have a model of this name run on this unit."""
    return unit.endswith(TORCH) and has_program_suffix(name)


def find_other_format(head: bytes) -> tuple[str, str] | None:
    """If a file that begins with `head` (512 bytes are enough) is clearly not a model: what it is, and what to do."""
    for offset, signature, what, hint in _SIGNATURES:
        if head.startswith(signature, offset):
            return what, hint
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith(b"<?xml") and b"<net " in start:
        return (
            "the text of an OpenVINO model without its weights",
            "give the folder that holds the .xml file and its .bin file",
        )
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return (
            "a web page, not a model",
            "the server sent a page instead of the file: download the file itself",
        )
    return ("JSON text, not a model", _OTHER_FILE) if start.startswith((b"{", b"[")) else None


def read_format(path: Path) -> ModelFormat:
    """The format of the model at `path`, a file or a folder. Raises `FormatError`."""
    try:
        if path.is_dir():
            return _folder_format(path)
        with path.open("rb") as source:
            head = source.read(16)
            if head.startswith(b"PK\x03\x04"):
                return _archive_format(path)
    except FileNotFoundError:
        raise FormatError(f"model {path}: there is no such file") from None
    except OSError as why:
        raise FormatError(f"model {path} cannot be read: {why.strerror or why}") from why
    if known := next((kind for at, magic, kind in _MAGIC if head.startswith(magic, at)), None):
        return known
    if len(head) >= 2 and head[0] == 0x80 and head[1] in range(2, 6):
        return ModelFormat.PICKLE
    length = int.from_bytes(head[:8], "little")
    if len(head) > 8 and head[8:9] == b"{" and length <= path.stat().st_size - 8:
        return ModelFormat.SAFETENSORS
    return ModelFormat.OTHER


def _folder_format(folder: Path) -> ModelFormat:
    if (folder / "Manifest.json").is_file() and (folder / "Data").is_dir():
        return ModelFormat.MLPACKAGE
    if (folder / "model.json").is_file() and any(folder.glob("*.safetensors")):
        return ModelFormat.DECLARED
    if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
        return ModelFormat.TRANSFORMERS
    if any(file.with_suffix(".bin").is_file() for file in folder.glob("*.xml")):
        return ModelFormat.OPENVINO
    return ModelFormat.FOLDER


def _archive_format(path: Path) -> ModelFormat:
    names = set(read_members(path))
    if "archive_format" in names:
        return ModelFormat.EXPORTED
    if any(name.startswith("code/") for name in names):
        return ModelFormat.TORCHSCRIPT
    if "serialized_exported_program.json" in names:
        return ModelFormat.EXPORTED
    return ModelFormat.CHECKPOINT if "data.pkl" in names else ModelFormat.ZIP


def read_members(path: Path) -> dict[str, int]:
    """Unpacked size of each file in a torch archive, by its name below the archive's only folder.

    Raises `FormatError` if two readers could interpret the archive differently: a duplicate name, a name that leads outside, several
    folders.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            listed = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as why:
        raise FormatError(f"the archive is broken: {why}") from why
    if len(listed) > MAX_MEMBERS:
        raise FormatError(f"the archive holds {len(listed)} files; at most {MAX_MEMBERS} are allowed")
    sizes: dict[str, int] = {}
    roots: set[str] = set()
    for member in listed:
        root, _, name = member.filename.partition("/")
        roots.add(root)
        odd = not name or name in sizes or ".." in name.split("/") or "\\" in name or name.startswith("/")
        if (odd and not member.is_dir()) or len(roots) > 1:
            raise FormatError(
                "the archive is not one that torch wrote: it contains unusual or duplicate names"
            )
        if not member.is_dir():
            sizes[name] = member.file_size
    return sizes


def read_member(path: Path, name: str, most: int) -> bytes:
    """The bytes of one file in the archive. Raises `FormatError` if it is missing, or larger than `most`."""
    try:
        with zipfile.ZipFile(path) as archive:
            root = archive.infolist()[0].filename.partition("/")[0]
            with archive.open(f"{root}/{name}") as source:
                data = source.read(most + 1)
    except (zipfile.BadZipFile, KeyError, IndexError, NotImplementedError, EOFError, RuntimeError) as why:
        raise FormatError(f"the archive is broken: {why}") from why
    if len(data) > most:
        raise FormatError(f"{name} in the archive is larger than {most >> 20} MiB")
    return data
