"""Which files OpenVINO gets to read, and the messages for all others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from drivers.contract.base import Unfit
from drivers.openvino.files import source_of
from protocol.formats.reference_model import chain_of_products


@pytest.fixture(autouse=True)
def private(tmp_path: Path) -> Iterator[Path]:
    """Work in a private folder, as a launch does."""
    folder = tmp_path / "private"
    folder.mkdir()
    with contextlib.chdir(folder):
        yield folder


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def test_formats_are_known_by_their_bytes_whatever_the_file_is_called(tmp_path: Path, private: Path) -> None:
    onnx = put(tmp_path / "a3f0", chain_of_products(4, 1, 1))
    source = source_of(onnx, 0)
    assert (source.path, source.title) == (onnx, "ONNX")
    assert source.graph is not None
    assert [port.name for port in source.graph.inputs] == ["x"]

    tflite = put(tmp_path / "b3f0", b"\x1c\0\0\0TFL3" + bytes(64))
    sources = [source_of(tflite, slot) for slot in (0, 1, 1)]
    assert [source.title for source in sources] == ["LiteRT"] * 3
    assert {source.path.suffix for source in sources} == {".tflite"}
    assert sources[0].path != sources[1].path
    assert sources[0].path.read_bytes() == tflite.read_bytes()

    xml = put(tmp_path / "ir" / "net.xml", b"<?xml version='1.0'?><net name='n'>")
    put(tmp_path / "ir" / "net.bin", b"")
    assert (source_of(xml.parent, 0).path, source_of(xml.parent, 0).title) == (xml, "OpenVINO IR")

    inside = put(tmp_path / "folder" / "net.onnx", chain_of_products(4, 1, 1))
    assert source_of(inside.parent, 0).path == inside


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "corrupt or cut short|cannot be read"),
        (bytes(range(256)) * 4, "not a complete ONNX model"),
        (chain_of_products(4, 1, 1)[:-40], "corrupt or cut short"),
        (b"GGUF" + bytes(64), r"neither \(GGUF model\)"),
        (b"<?xml version='1.0'?><net name='n'>", "without its weights: give the folder that holds the .xml"),
        (b"<html>", "a web page"),
        (b"\x80\x04pickle", r"neither \(pickle\)"),
    ],
)
def test_what_is_no_such_model_is_refused_with_what_openvino_takes(
    tmp_path: Path, content: bytes, said: str
) -> None:
    with pytest.raises(Unfit, match=said) as refused:
        source_of(put(tmp_path / "model", content), 0)
    assert "OpenVINO runs an .onnx file, a .tflite file, or a folder with one .xml and its .bin" in str(
        refused.value
    )


def test_a_folder_with_several_models_or_none_is_refused(tmp_path: Path) -> None:
    for name in ("model", "tokenizer"):
        put(tmp_path / "ir" / f"{name}.xml", b"<net>")
        put(tmp_path / "ir" / f"{name}.bin", b"")
    with pytest.raises(Unfit, match=r"the folder holds 2 \.xml files"):
        source_of(tmp_path / "ir", 0)
    with pytest.raises(Unfit, match=r"the folder holds 0 \.onnx files"):
        source_of(put(tmp_path / "empty" / "readme", b"").parent, 0)
    with pytest.raises(Unfit, match="there is no such file"):
        source_of(tmp_path / "missing", 0)
