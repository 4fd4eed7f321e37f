"""Checks the archives that torch writes, without torch and before torch reads them.

TorchScript: torch reads `data.pkl` and `constants.pkl` with an unpickler of its own, which imports nothing. But `code/` is a program that
can read and write files. It is therefore accepted only from people whom the device's owner trusts, in archives without unusual files.

torch.export: the graph is JSON and weights are raw bytes. But torch would unpickle marked weights and constants, opaque objects, and sample
inputs that its restricted unpickler refuses; and it would load shared libraries. All of these are refused here; `drivers.torch.models`
tries the sample inputs with the restricted unpickler.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from drivers.contract.base import MIB, Unfit
from drivers.contract.formats import NO_PICKLE, broken_is_unfit, read_json
from protocol.formats.model_files import (
    CODE_CARRYING_FORMATS,
    PICKLE_FORMATS,
    ModelFormat,
    read_format,
    read_member,
    read_members,
)

NOT_FOR_STRANGERS: Final = (
    "a {kind} contains a program, which runs only for this device's owner and people whom the owner admitted; "
    "send its weights as safetensors with a declaration, or export it to ONNX"
)

MAX_CONFIG: Final = 64 * MIB
MAX_EXPANSION: Final = 20
"""Largest ratio of unpacked to packed size; weights hardly compress."""

_COMMON: Final = r"version|byteorder|\.data/[\w.]+|\.format_version|\.storage_alignment"
_TORCHSCRIPT: Final = re.compile(
    rf"(?:{_COMMON}|(?:data|constants|traced_inputs|attributes|bytecode)\.pkl|"
    r"(?:data|constants|traced_inputs|tensors)/[\w.]+|code/[\w./]+\.py(?:\.debug_pkl)?)"
)
_EXPORTED: Final = re.compile(
    rf"(?:{_COMMON}|archive_format|archive_version|models/\w+\.json|data/weights/(?:weight_\d+|\w+_config\.json)|"
    r"data/constants/(?:tensor_\d+|\w+_config\.json)|data/sample_inputs/\w+\.pt)"
)


@broken_is_unfit()
def check_model(model: Path, trusted: bool) -> ModelFormat:
    """The format of a model that torch may read. Raises `Unfit`, saying what is wrong and what to do."""
    kind = read_format(model)
    if kind in PICKLE_FORMATS:
        raise Unfit(NO_PICKLE.format(kind=kind))
    if kind in CODE_CARRYING_FORMATS and not trusted:
        raise Unfit(NOT_FOR_STRANGERS.format(kind=kind))
    if kind is ModelFormat.TORCHSCRIPT:
        _only(model, _TORCHSCRIPT, kind)
    elif kind is ModelFormat.EXPORTED:
        _check_exported(model)
    elif kind not in (ModelFormat.SAFETENSORS, ModelFormat.DECLARED):
        raise Unfit(
            "the Torch units run TorchScript, torch.export programs, and safetensors with a declared architecture; "
            f"this is none of them ({kind})"
        )
    return kind


def _only(model: Path, allowed: re.Pattern[str], kind: ModelFormat) -> dict[str, int]:
    members = read_members(model)
    odd = next((name for name in members if not allowed.fullmatch(name)), None)
    if odd is not None:
        raise Unfit(
            f"the {kind} holds {odd[:100]!r}, which no model of this kind needs: save it again without extra files"
        )
    if sum(members.values()) > MAX_EXPANSION * model.stat().st_size + MIB:
        raise Unfit(f"the {kind} unpacks to more than {MAX_EXPANSION} times its size")
    return members


def _check_exported(model: Path) -> None:
    if "archive_format" not in read_members(model):
        raise Unfit(
            "the torch.export program is in an old format, which contains pickles: save it again with torch.export.save"
        )
    members = _only(model, _EXPORTED, ModelFormat.EXPORTED)
    for name in members:
        if not name.endswith("_config.json"):
            continue
        config = read_json(read_member(model, name, MAX_CONFIG), name)
        entries = config.get("config")
        if not isinstance(entries, dict):
            raise Unfit(f"{name} in the program does not list tensors: save it again with torch.export.save")
        for entry in entries.values():
            if not isinstance(entry, dict) or entry.get("use_pickle") is not False:
                raise Unfit(
                    "the torch.export program holds pickled weights or constants, which could run any program: "
                    "give it plain dense tensors only"
                )


@broken_is_unfit()
def sample_inputs(model: Path) -> dict[str, bytes]:
    """The pickled sample inputs of a program, by name."""
    return {
        name: read_member(model, name, MAX_CONFIG)
        for name in read_members(model)
        if name.startswith("data/sample_inputs/")
    }
