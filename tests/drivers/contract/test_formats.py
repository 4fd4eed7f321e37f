"""A model's format, read from its bytes, and models that are refused before any runtime sees them."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drivers.contract.base import Unfit
from drivers.inputs.feeds import read_declared
from drivers.torch import safetensors
from drivers.torch.architectures import ARCHITECTURES, open_declared, read_declaration
from drivers.torch.archive import check_model
from protocol.formats.model_files import FormatError, ModelFormat, read_format, read_members

MLP = {"architecture": "mlp", "inputs": 2, "hidden": [3], "outputs": 1}
SHAPES = {"0.weight": (3, 2), "0.bias": (3,), "2.weight": (1, 3), "2.bias": (1,)}
SCRIPT = {"data.pkl": b"x", "code/__torch__.py": b"x", "constants.pkl": b"x", "data/0": b"x", "version": b"3"}
CONFIG = json.dumps({"config": {"w": {"path_name": "weight_0", "use_pickle": False}}}).encode()
PROGRAM = {
    "archive_format": b"pt2",
    "archive_version": b"0",
    "models/model.json": b"{}",
    "data/weights/weight_0": b"abcd",
    "data/weights/model_weights_config.json": CONFIG,
    "data/constants/model_constants_config.json": b'{"config": {}}',
    "data/sample_inputs/model.pt": b"",
    ".data/version": b"3",
}


def archive(path: Path, files: dict[str, bytes], root: str = "net") -> Path:
    with zipfile.ZipFile(path, "w") as made:
        for name, content in files.items():
            made.writestr(f"{root}/{name}", content)
    return path


def weights(path: Path, shapes: dict[str, tuple[int, ...]], **metadata: str) -> Path:
    """A safetensors file of float32."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, shape in shapes.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    return raw(path, header, np.arange(at // 4, dtype=np.float32).tobytes())


def raw(path: Path, header: object, content: bytes) -> Path:
    result = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(result)) + result + content)
    return path


# -- kinds and trust -----------------------------------------------------------------------------------------------------


def test_a_kind_is_recognised_by_content_whatever_the_file_is_called(tmp_path: Path) -> None:
    odd = tmp_path / "model.onnx"
    assert read_format(archive(odd, SCRIPT)) is ModelFormat.TORCHSCRIPT
    assert read_format(archive(odd, PROGRAM)) is ModelFormat.EXPORTED
    assert read_format(archive(odd, {"data.pkl": b"", "data/0": b""})) is ModelFormat.CHECKPOINT
    assert read_format(archive(odd, {"readme": b""})) is ModelFormat.ZIP
    assert read_format(weights(odd, SHAPES)) is ModelFormat.SAFETENSORS
    odd.write_bytes(pickle.dumps({"a": 1}))
    assert read_format(odd) is ModelFormat.PICKLE
    odd.write_bytes(b"\x08\x08\x12\x07")
    assert read_format(odd) is ModelFormat.OTHER
    with pytest.raises(FormatError, match="no such file"):
        read_format(tmp_path / "none")


@pytest.mark.parametrize("trusted", [True, False])
def test_pickles_are_refused_with_what_to_do_instead(tmp_path: Path, trusted: bool) -> None:
    checkpoint = archive(tmp_path / "c.pt", {"data.pkl": b"", "data/0": b""})
    legacy = tmp_path / "l.pt"
    legacy.write_bytes(pickle.dumps([1]))
    for model in (checkpoint, legacy):
        with pytest.raises(
            Unfit, match=r"pickle, which could run any program.*torch.export.save or torch.jit.save"
        ):
            check_model(model, trusted)


def test_programs_are_for_trusted_people_and_weights_for_all(tmp_path: Path) -> None:
    for name, files, kind in (
        ("s.pt", SCRIPT, ModelFormat.TORCHSCRIPT),
        ("p.pt2", PROGRAM, ModelFormat.EXPORTED),
    ):
        model = archive(tmp_path / name, files)
        assert check_model(model, trusted=True) is kind
        with pytest.raises(Unfit, match="only for this device's owner"):
            check_model(model, trusted=False)
    assert check_model(weights(tmp_path / "w", SHAPES), trusted=False) is ModelFormat.SAFETENSORS
    (tmp_path / "other").write_bytes(b"\x08\x08")
    with pytest.raises(Unfit, match="none of them"):
        check_model(tmp_path / "other", trusted=True)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"data/aotinductor/model/lib.so": b"\x7fELF"}, "no model of this kind needs"),
        ({"extra/script.py": b""}, "no model of this kind needs"),
        ({"data/constants/opaque_obj_0": b""}, "no model of this kind needs"),
        ({"data/constants/custom_obj_0": b""}, "no model of this kind needs"),
        ({"data/weights/model_weights_config.json": CONFIG.replace(b"false", b"true")}, "pickled weights"),
        ({"data/weights/model_weights_config.json": b'{"config": {"w": {}}}'}, "pickled weights"),
        ({"data/weights/model_weights_config.json": b'{"config": [1]}'}, "does not list tensors"),
        ({"data/constants/model_constants_config.json": b"nonsense"}, "not readable JSON"),
        ({"data/weights/weight_0": bytes(10_000_000)}, None),
    ],
)
def test_what_torch_would_unpickle_or_load_in_a_program_is_refused(
    tmp_path: Path, change: dict[str, bytes], why: str | None
) -> None:
    model = archive(tmp_path / "p.pt2", PROGRAM | change)
    if why is None:
        assert check_model(model, trusted=True) is ModelFormat.EXPORTED
        return
    with pytest.raises(Unfit, match=why):
        check_model(model, trusted=True)


def test_a_program_in_the_old_format_of_pickles_is_refused(tmp_path: Path) -> None:
    old = {"serialized_exported_program.json": b"{}", "serialized_state_dict.pt": b"x", "version": b"1"}
    with pytest.raises(Unfit, match="old format"):
        check_model(archive(tmp_path / "p.pt2", old), trusted=True)


def test_an_archive_that_two_readers_could_read_in_two_ways_is_refused(tmp_path: Path) -> None:
    twice = tmp_path / "t.pt"
    with zipfile.ZipFile(twice, "w") as made:
        made.writestr("net/code/a.py", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            made.writestr("net/code/a.py", b"2")
    with pytest.raises(FormatError, match="duplicate names"):
        read_members(twice)
    with zipfile.ZipFile(tmp_path / "roots.pt", "w") as made:
        made.writestr("a/code/x.py", b"")
        made.writestr("b/data.pkl", b"")
    for model in (tmp_path / "roots.pt", archive(tmp_path / "out.pt", SCRIPT | {"../x": b""})):
        with pytest.raises(FormatError, match="unusual or duplicate"):
            read_members(model)
    (tmp_path / "cut.pt").write_bytes(b"PK\x03\x04" + b"x" * 50)
    with pytest.raises(FormatError, match="broken"):
        read_format(tmp_path / "cut.pt")


def test_an_archive_that_blows_up_is_refused(tmp_path: Path) -> None:
    bomb = tmp_path / "b.pt"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in (SCRIPT | {"data/1": bytes(50_000_000)}).items():
            made.writestr(f"net/{name}", content)
    with pytest.raises(Unfit, match="20 times"):
        check_model(bomb, trusted=True)


# -- weights --------------------------------------------------------------------------------------------------------------


def test_weights_are_read_as_they_were_written(tmp_path: Path) -> None:
    held = safetensors.read(weights(tmp_path / "w", SHAPES, format="pt"))
    assert {name: tensor.shape for name, tensor in held.tensors.items()} == SHAPES
    assert held.metadata == {"format": "pt"}
    assert held.array("0.bias").tolist() == [6, 7, 8]


@pytest.mark.parametrize(
    ("header", "content", "why"),
    [
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"1234", "longer or shorter"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"1234", "not have the size"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, b"12345678", "does not follow"),
        ({"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, b"1234", "not supported"),
        ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"1234", "shape or offset"),
        ({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, b"1234", "shape or offset"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}, b"1234", "the offset"),
        ({"a": 1}, b"", "not a tensor"),
        ({"__metadata__": {"a": 1}}, b"", "not texts"),
        ([1], b"", "not a JSON object"),
        (
            {name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for name in "ab"},
            b"1234",
            "does not follow",
        ),
    ],
)
def test_weights_that_do_not_hold_together_are_refused(
    tmp_path: Path, header: object, content: bytes, why: str
) -> None:
    with pytest.raises(Unfit, match=why):
        safetensors.read(raw(tmp_path / "w", header, content))


def test_a_header_longer_than_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    with pytest.raises(Unfit, match="too long or cut off"):
        safetensors.read(tmp_path / "w")


# -- declarations ----------------------------------------------------------------------------------------------------------


def test_an_architecture_says_its_weights_and_its_input() -> None:
    mlp = read_declaration(MLP)
    assert (mlp.weights(), mlp.input_shape()) == (SHAPES, ("batch", 2))
    cnn = read_declaration({"architecture": "cnn", "channels": [3, 4, 8], "image": [16, 20], "outputs": 10})
    assert cnn.weights()["3.weight"] == (8, 4, 3, 3)
    assert cnn.weights()["8.weight"] == (10, 8)
    assert cnn.input_shape() == ("batch", 3, 16, 20)
    values = {"architecture": "transformer-encoder", "width": 16, "heads": 4, "layers": 2, "feedforward": 32}
    encoder = read_declaration(values)
    assert len(encoder.weights()) == 24
    assert encoder.input_shape() == ("batch", "length", 16)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"architecture": "resnet"}, f"there are {', '.join(ARCHITECTURES)}"),
        ({}, "is not known"),
        (MLP | {"code": "x"}, "which is not a key of a mlp"),
        ({"architecture": "mlp", "inputs": 2}, "lacks 'outputs'"),
        (MLP | {"inputs": 0}, "'inputs' cannot be 0"),
        (MLP | {"inputs": True}, "'inputs' cannot be True"),
        (MLP | {"hidden": [1] * 1000}, "'hidden' cannot be"),
        (MLP | {"activation": "exec"}, "'activation' cannot be"),
        ({"architecture": "cnn", "channels": [3, 4, 8], "image": [3, 9], "outputs": 1}, "too small"),
        (
            {"architecture": "transformer-encoder", "width": 6, "heads": 4, "layers": 1, "feedforward": 1},
            "multiple",
        ),
    ],
)
def test_a_declaration_that_makes_no_network_is_refused(fields: dict[str, object], why: str) -> None:
    with pytest.raises(Unfit, match=why):
        read_declaration(fields)


def test_a_declaration_stands_beside_the_weights_or_in_them(tmp_path: Path) -> None:
    alone = weights(tmp_path / "alone", SHAPES, declaration=json.dumps(MLP))
    folder = tmp_path / "folder"
    folder.mkdir()
    weights(folder / "w.safetensors", SHAPES)
    (folder / "model.json").write_text(json.dumps(MLP))
    for model in (alone, folder):
        assert open_declared(model, check_model(model, trusted=False))[0] == read_declaration(MLP)
    bare = weights(tmp_path / "bare", SHAPES)
    with pytest.raises(Unfit, match=r"the network of its weights.*model.json"):
        open_declared(bare, ModelFormat.SAFETENSORS)


@pytest.mark.parametrize(
    ("shapes", "why"),
    [
        ({**SHAPES, "0.bias": (4,)}, "has the shape"),
        ({name: shape for name, shape in SHAPES.items() if name != "2.bias"}, "lack '2.bias'"),
        ({**SHAPES, "more": (1,)}, "hold 'more'"),
    ],
)
def test_weights_of_another_network_are_refused(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], why: str
) -> None:
    model = weights(tmp_path / "w", shapes, declaration=json.dumps(MLP))
    with pytest.raises(Unfit, match=why):
        open_declared(model, ModelFormat.SAFETENSORS)


def test_an_input_is_declared_by_its_type_and_shape() -> None:
    made = read_declared("x", "float32[batch, 3,224 ,224]")
    assert (made.dtype, made.shape) == ("float", ("batch", 3, 224, 224))
    assert read_declared("n", "int64[]").shape == ()
    for form in ("float32", "float31[1]", "float32[1,,2]", "float32[1"):
        with pytest.raises(Unfit, match="declared as"):
            read_declared("x", form)
