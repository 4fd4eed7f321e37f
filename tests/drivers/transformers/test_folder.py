"""Which folders the Transformers driver opens. It refuses all others before it imports `transformers`."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.base import Unfit
from drivers.transformers.folder import open_folder

CONFIG = {"architectures": ["BertModel"], "model_type": "bert", "num_hidden_layers": 2}


def weights(path: Path, name: str = "w") -> None:
    header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    weights(tmp_path / "model.safetensors")
    return tmp_path


def configure(folder: Path, **changes: Any) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))


def test_a_plain_folder_is_opened_and_names_its_class(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    opened = open_folder(folder)
    assert (opened.architecture, opened.config["model_type"]) == ("BertModel", "bert")


@pytest.mark.parametrize("name", ["modeling_mine.py", "below/x.PY", "lib.so"])
def test_programs_are_refused(folder: Path, name: str) -> None:
    (folder / "below").mkdir()
    (folder / name).touch()
    with pytest.raises(Unfit, match="a program, which is never run"):
        open_folder(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "optimizer.pt", "x.pkl", "below/x.CKPT"])
def test_pickles_are_refused_beside_safetensors_too(folder: Path, name: str) -> None:
    (folder / "below").mkdir()
    (folder / name).touch()
    with pytest.raises(Unfit, match=r"Python pickle.*take it out, save the model"):
        open_folder(folder)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"auto_map": {"AutoModel": "mine.Net"}}, "its own code, which is never run"),
        ({"text_config": [{"auto_map": {}}]}, "its own code"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised weights are not supported"),
        ({"_attn_implementation": "someone/kernels"}, "code from elsewhere"),
        ({"dtype": "load"}, "bfloat16, float16"),
        ({"num_hidden_layers": 10**9}, "1000000000, but the weights have 1 tensors"),
        ({"architectures": None}, r'write "architectures": \["BertModel"\]'),
        ({"architectures": ["BertModel", "ViTModel"]}, "does not name"),
        ({"architectures": ["os.system"]}, "not a class of transformers"),
    ],
)
def test_a_config_that_cannot_be_run_as_it_is_is_refused(
    folder: Path, changes: dict[str, Any], says: str
) -> None:
    configure(folder, **changes)
    with pytest.raises(Unfit, match=says):
        open_folder(folder)


def test_broken_files_are_refused(folder: Path) -> None:
    (folder / "config.json").write_text("[" * 10_000)
    with pytest.raises(Unfit, match=r"config\.json is not readable JSON"):
        open_folder(folder)
    configure(folder)
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(Unfit, match="header is too long"):
        open_folder(folder)


def test_weights_in_parts_lie_in_the_folder(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    with pytest.raises(Unfit, match=r"no model.safetensors and no model.safetensors.index.json"):
        open_folder(folder)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "model-1.safetensors"}}))
    assert open_folder(folder).architecture == "BertModel"
    for elsewhere in ("../model-1.safetensors", "/etc/passwd", "config.json", "model-2.safetensors"):
        index.write_text(json.dumps({"weight_map": {"w": elsewhere}}))
        with pytest.raises(Unfit, match=r"not a \.safetensors file in the folder"):
            open_folder(folder)
    index.write_text('{"weight_map": 3}')
    with pytest.raises(Unfit, match="does not say where"):
        open_folder(folder)


def test_what_is_no_such_folder_is_refused_with_what_is(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(Unfit, match=r"a folder with a config.json and .safetensors files.*\(safetensors\)"):
        open_folder(folder / "model.safetensors")
    with pytest.raises(Unfit, match="there is no such file"):
        open_folder(tmp_path / "nowhere")
    (folder / "adapter_config.json").touch()
    with pytest.raises(Unfit, match="merge it into its model"):
        open_folder(folder)
