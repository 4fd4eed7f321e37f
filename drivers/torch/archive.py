"""The archives that torch writes, looked through before torch sees them. Pure: no torch here.

TorchScript: `data.pkl` and `constants.pkl` are read by torch's own unpickler, which is in C++ and knows tensors, plain values and the
archive's own TorchScript classes, and imports nothing. But `code/` is a program: its operators can read and write files. So it is taken
from people that the device's owner trusts, with nothing in the archive that a model has no use for.

torch.export: the graph is JSON and weights are raw bytes; but torch would unpickle, without restraint, weights and constants that are
marked so, opaque objects, and sample inputs that its restricted unpickler refuses; and it would load shared libraries. All of these are
refused here; the sample inputs are tried with the restricted unpickler first (`torch_models.py`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from drivers.contract.base import MIB, Unfit
from drivers.contract.formats import NO_PICKLE, broken_is_unfit, read_json
from protocol.formats.model_files import (
    RUNS_CODE,
    UNPICKLES,
    ModelFormat,
    read_format,
    read_member,
    read_members,
)

NOT_FOR_STRANGERS: Final = (
    "a {kind} carries a program, which is run only for this device's owner and people whom the owner let in; "
    "send its weights as safetensors with a declaration, or export it to ONNX"
)

MAX_CONFIG: Final = 64 * MIB
BLOWN_UP: Final = 20
"""Most that an archive may grow when it is unpacked; weights hardly shrink when they are packed."""

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
def examine(model: Path, trusted: bool) -> ModelFormat:
    """The kind of a model for the Torch units, fit to be handed to torch. Raises `Unfit` with what is wrong and what to do."""
    kind = read_format(model)
    if kind in UNPICKLES:
        raise Unfit(NO_PICKLE.format(kind=kind))
    if kind in RUNS_CODE and not trusted:
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


def _only(model: Path, known: re.Pattern[str], kind: ModelFormat) -> dict[str, int]:
    inside = read_members(model)
    odd = next((name for name in inside if not known.fullmatch(name)), None)
    if odd is not None:
        raise Unfit(
            f"the {kind} holds {odd[:100]!r}, which no such model needs: save it again without extra files"
        )
    if sum(inside.values()) > BLOWN_UP * model.stat().st_size + MIB:
        raise Unfit(f"the {kind} unpacks to more than {BLOWN_UP} times its size")
    return inside


def _check_exported(model: Path) -> None:
    if "archive_format" not in read_members(model):
        raise Unfit(
            "the torch.export program is in an old format, which holds pickles: save it again with torch.export.save"
        )
    inside = _only(model, _EXPORTED, ModelFormat.EXPORTED)
    for name in inside:
        if not name.endswith("_config.json"):
            continue
        told = read_json(read_member(model, name, MAX_CONFIG), name)
        entries = told.get("config")
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
    """The pickled sample inputs of a program, for the restricted unpickler to be tried on."""
    return {
        name: read_member(model, name, MAX_CONFIG)
        for name in read_members(model)
        if name.startswith("data/sample_inputs/")
    }
