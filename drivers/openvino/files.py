"""Determines, from a model's bytes, which of OpenVINO's formats it has, and the path to pass to OpenVINO."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from drivers.contract.base import Unfit
from drivers.contract.formats import broken_is_unfit
from protocol.formats.model_files import FormatError, ModelFormat, find_other_format, read_format
from protocol.formats.onnx import OnnxGraph, read_graph

TAKES = "OpenVINO runs an .onnx file, a .tflite file, or a folder with one .xml and its .bin"


@dataclass(frozen=True, slots=True)
class ModelSource:
    path: Path
    """The file that OpenVINO reads."""
    title: str
    """Title of the format, for the row."""
    graph: OnnxGraph | None = None
    """Graph of an ONNX model."""


def source_of(model: Path, slot: int) -> ModelSource:
    """The model in a form that OpenVINO can read. `slot`: the order's, for a name in the private folder. Raises `Unfit`."""
    with broken_is_unfit():
        kind = read_format(model)
    if kind is ModelFormat.OPENVINO:
        return ModelSource(_only(model, "*.xml"), "OpenVINO IR")
    if kind is ModelFormat.TFLITE:
        return ModelSource(_named(model, Path(f"openvino-{slot}.tflite")), "LiteRT")
    if kind is ModelFormat.FOLDER:
        return _onnx(_only(model, "*.onnx"))
    if kind is not ModelFormat.OTHER:
        raise Unfit(f"{TAKES}; this is neither ({kind})")
    return _onnx(model)


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise Unfit(f"the folder holds {len(found)} {pattern[1:]} files; {TAKES}")
    return found[0]


def _onnx(file: Path) -> ModelSource:
    with file.open("rb") as opened:
        other = find_other_format(opened.read(512))
    if other is not None:
        raise Unfit(f"the file is {other[0]}: {other[1]}; {TAKES}")
    try:
        return ModelSource(file, "ONNX", read_graph(file))
    except FormatError as why:
        raise Unfit(f"the model {why}; {TAKES}") from why


def _named(model: Path, link: Path) -> Path:
    """The file under a name with the suffix by which OpenVINO recognises it."""
    link.unlink(missing_ok=True)
    try:
        link.symlink_to(model.resolve())
    except OSError:  # such as on Windows, without the right to make links
        shutil.copyfile(model, link)
    return link
