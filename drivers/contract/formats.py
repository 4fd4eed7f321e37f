"""What a model is, by its bytes; and which formats can run code. Pure but for reading the model's own files.

A format that carries a program (TorchScript, `torch.export`) can do more than compute: it is run for people that the device's owner knows,
and never for strangers. A plain pickle is run for nobody.
"""

from __future__ import annotations

import json
import zipfile
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Final

from drivers.contract.base import Unfit

TORCH: Final = "(Torch)"
"""How the names of the units end whose models these are."""
COREML: Final = "(CoreML)"
MAX_MEMBERS: Final = 100_000


class ModelFormat(StrEnum):
    """A model's format, in words for people."""

    TORCHSCRIPT = "TorchScript"
    EXPORTED = "torch.export program"
    SAFETENSORS = "safetensors"
    CHECKPOINT = "PyTorch checkpoint"
    PICKLE = "pickle"
    ZIP = "zip archive"
    MLPACKAGE = "mlpackage"
    DECLARED = "safetensors with a declaration"
    FOLDER = "folder"
    OTHER = "other file"


RUNS_CODE: Final = frozenset({ModelFormat.TORCHSCRIPT, ModelFormat.EXPORTED})
"""Never for strangers."""
UNPICKLES: Final = frozenset({ModelFormat.CHECKPOINT, ModelFormat.PICKLE})
"""Never at all."""
SUFFIXES: Final = frozenset({".pt", ".pt2", ".pth", ".ts", ".jit", ".bin", ".ckpt", ".pkl"})
"""What the files of both are called as a rule: enough to say no early; the driver looks at the bytes."""

NO_PICKLE: Final = (
    "this is a {kind}: a Python pickle, which could run any program, so it is never opened; "
    "save the model with torch.export.save or torch.jit.save, or its weights as safetensors with a declaration"
)
NOT_FOR_STRANGERS: Final = (
    "a {kind} carries a program, which is run only for this device's owner and people whom the owner let in; "
    "send its weights as safetensors with a declaration, or export it to ONNX"
)


def looks_trusting(unit: str, name: str) -> bool:
    """Whether a model of this name on this unit is one that strangers may not have run."""
    return unit.endswith(TORCH) and PurePosixPath(name.lower()).suffix in SUFFIXES


ENDINGS: Final = frozenset({".onnx", ".ort", ".mlmodel", ".yaml", ".yml", ".json"})
"""Of models that cannot be told by their first bytes."""


def check_known(path: Path) -> None:
    """Raises `Unfit` for a file or folder that none of our drivers could open: by its bytes, else by its ending."""
    kind = kind_of(path)
    if kind in UNPICKLES:
        raise Unfit(NO_PICKLE.format(kind=kind))
    if kind is ModelFormat.FOLDER:
        if not any(path.glob("*.onnx")):
            raise Unfit(
                "there is no .onnx file in the folder, and it is neither an mlpackage nor a declaration with weights"
            )
    elif kind in (ModelFormat.OTHER, ModelFormat.ZIP) and path.suffix.lower() not in ENDINGS:
        raise Unfit(
            f"neither its first bytes nor its ending ({path.suffix or 'it has none'}) tell what runs it"
        )


def kind_of(path: Path) -> ModelFormat:
    """The format of the model at `path`. Raises `Unfit` where there is none, or it cannot be read."""
    try:
        if path.is_dir():
            return _kind_of_folder(path)
        with path.open("rb") as source:
            head = source.read(16)
            if head.startswith(b"PK\x03\x04"):
                return _kind_of_archive(path)
    except FileNotFoundError:
        raise Unfit(f"model {path}: there is no such file") from None
    except OSError as why:
        raise Unfit(f"model {path} cannot be read: {why.strerror or why}") from why
    if len(head) >= 2 and head[0] == 0x80 and head[1] in range(2, 6):
        return ModelFormat.PICKLE
    length = int.from_bytes(head[:8], "little")
    if len(head) > 8 and head[8:9] == b"{" and length <= path.stat().st_size - 8:
        return ModelFormat.SAFETENSORS
    return ModelFormat.OTHER


def _kind_of_folder(folder: Path) -> ModelFormat:
    if (folder / "Manifest.json").is_file() and (folder / "Data").is_dir():
        return ModelFormat.MLPACKAGE
    if (folder / "model.json").is_file() and any(folder.glob("*.safetensors")):
        return ModelFormat.DECLARED
    return ModelFormat.FOLDER


def _kind_of_archive(path: Path) -> ModelFormat:
    inside = set(members(path))
    if "archive_format" in inside:
        return ModelFormat.EXPORTED
    if any(name.startswith("code/") for name in inside):
        return ModelFormat.TORCHSCRIPT
    if "serialized_exported_program.json" in inside:
        return ModelFormat.EXPORTED
    return ModelFormat.CHECKPOINT if "data.pkl" in inside else ModelFormat.ZIP


def members(path: Path) -> dict[str, int]:
    """Unpacked size of each file in an archive of torch's, by its name below the archive's one folder.

    Raises `Unfit` for one that two readers could read in two ways: a name twice, a name that leads out, more than one folder.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            listed = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as why:
        raise Unfit(f"the archive is broken: {why}") from why
    if len(listed) > MAX_MEMBERS:
        raise Unfit(f"the archive holds {len(listed)} files; at most {MAX_MEMBERS} are taken")
    found: dict[str, int] = {}
    roots: set[str] = set()
    for member in listed:
        root, _, name = member.filename.partition("/")
        roots.add(root)
        odd = not name or name in found or ".." in name.split("/") or "\\" in name or name.startswith("/")
        if (odd and not member.is_dir()) or len(roots) > 1:
            raise Unfit("the archive is not one that torch wrote: odd or doubled names in it")
        if not member.is_dir():
            found[name] = member.file_size
    return found


def read_member(path: Path, name: str, most: int) -> bytes:
    """The bytes of one file in the archive. Raises `Unfit` when it is not there, or larger than `most`."""
    try:
        with zipfile.ZipFile(path) as archive:
            root = archive.infolist()[0].filename.partition("/")[0]
            with archive.open(f"{root}/{name}") as source:
                data = source.read(most + 1)
    except (zipfile.BadZipFile, KeyError, IndexError, NotImplementedError, EOFError, RuntimeError) as why:
        raise Unfit(f"the archive is broken: {why}") from why
    if len(data) > most:
        raise Unfit(f"{name} in the archive is larger than {most >> 20} MiB")
    return data


def read_json(data: bytes, what: str) -> dict[str, object]:
    """A JSON object. Raises `Unfit`, naming `what`."""
    try:
        told = json.loads(data)
    except (ValueError, RecursionError) as why:
        raise Unfit(f"{what} is not readable JSON: {why}") from why
    if not isinstance(told, dict):
        raise Unfit(f"{what} is not a JSON object")
    return told
