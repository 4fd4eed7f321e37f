"""The MLX driver with the real MLX and mlx-lm on the processor, with tiny random models, through the child processes of a node."""

from __future__ import annotations

import json
import sys
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.base import (
    AnswersReport,
    CheckReport,
    Event,
    Limits,
    ModelDescription,
    RunFindings,
    Unfit,
    WorkOrder,
    WrongUnit,
)
from drivers.launch.launch import Zygote, measure
from drivers.mlx.units import CPU, GPU
from drivers.testing.conformance import Subject, check_all
from protocol.formats.examples import UNNAMED, pack_examples, text_value, unpack_examples

if sys.platform == "win32":
    pytest.skip("there is no MLX for Windows", allow_module_level=True)

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "rms_norm_eps": 1e-5,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
SIZES = {"prompt": 16, "generate": 8}


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote("mlx").start() as started:
        yield started


def save(folder: Path, bits: int = 0, half: bool = False) -> Path:
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten
    from mlx_lm.models import llama

    mx.random.seed(0)
    net, config = llama.Model(llama.ModelArgs.from_dict(CONFIG)), dict(CONFIG)
    if half:
        net.set_dtype(mx.bfloat16)
    if bits:
        config["quantization"] = config["quantization_config"] = {"group_size": 32, "bits": bits}
        nn.quantize(net, **config["quantization"])
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(net.parameters())))
    return configured(folder, config)


def configured(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    for file in (folder, *folder.iterdir()):
        file.chmod(0o755 if file.is_dir() else 0o644)  # a node of root runs models as nobody
    return folder


def run(model: Path, zygote: Zygote, **changes: Any) -> list[Event]:
    order = replace(WorkOrder(str(model), CPU, runs=4, loads=1, warmup=1, dims=SIZES), **changes)
    return list(measure(order, Limits(load_s=120, run_s=120), zygote))


def one(events: list[Event], kind: type[Any]) -> Any:
    return next(event for event in events if isinstance(event, kind))


def test_the_mlx_driver_keeps_the_contract(tmp_path: Path) -> None:
    check_all(Subject("mlx", CPU, str(save(tmp_path / "m")), dims=SIZES))


def test_a_prompt_is_answered_as_by_mlx_lm(tmp_path: Path, zygote: Zygote) -> None:
    import mlx_lm
    import tokenizers
    import transformers

    model, words = save(tmp_path / "m"), ["<unk>", "</s>", *(f"w{at}" for at in range(254))]
    own = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: at for at, word in enumerate(words)}, "<unk>")
    )
    own.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=own, unk_token="<unk>", eos_token="</s>"
    ).save_pretrained(model)
    file = tmp_path / "texts.examples"
    texts = ("w1 w2 w3", "w9 w8 w7 w6")
    file.write_bytes(pack_examples({UNNAMED: text_value(text)} for text in texts))
    file.chmod(0o644)
    configured(model, CONFIG | {"max_position_embeddings": 64})
    report = one(run(model, zygote, examples=str(file)), AnswersReport)
    assert not report.why
    made = [answer[UNNAMED].text for answer in unpack_examples(b64decode(report.answers))]
    net, tokenizer = mlx_lm.load(str(model))
    assert made == [
        mlx_lm.generate(net, tokenizer, prompt=text, max_tokens=SIZES["generate"]) for text in texts
    ]
    assert all(made)
    configured(model, CONFIG | {"max_position_embeddings": 11})
    report = one(run(model, zygote, examples=str(file)), AnswersReport)
    assert "prompt of 4 tokens and an answer of up to 8 are more than the 11" in report.why


@pytest.mark.parametrize(("bits", "half"), [(0, False), (0, True), (4, False)])
def test_a_language_model_has_the_figures_of_its_kind_and_agrees(
    tmp_path: Path, zygote: Zygote, bits: int, half: bool
) -> None:
    events = run(save(tmp_path / "m", bits, half), zygote, dims={**SIZES, "depth": 8})
    described, found = one(events, ModelDescription), one(events, RunFindings)
    assert described.providers == ("cpu",)
    assert described.shapes == {"prompt": (16,), "generate": (8,), "depth": (8,)}
    assert any("llama-bench's tg8 @ d8" in note for note in described.notes)
    assert any("'bits': 4" in note for note in described.notes) is (bits == 4)
    assert {"output_tokens_per_s", "prompt_tokens_per_s", "d0_output_tokens_per_s"} <= found.figures.keys()
    assert len(found.series["ttft"]) == 5
    assert one(events, CheckReport).agrees is True


def test_a_gpu_that_is_not_here_is_no_processor(tmp_path: Path, zygote: Zygote) -> None:
    import mlx.core as mx

    if mx.is_available(mx.gpu):
        assert one(run(save(tmp_path / "m"), zygote, unit=GPU), CheckReport).agrees is True
        return
    with pytest.raises(WrongUnit, match="this MLX finds no GPU"):
        run(save(tmp_path / "m"), zygote, unit=GPU)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model_file": "model.py"}, "brings its own code, which is never run"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "brings its own code, which is never run"),
        ({"model_type": "../../evil"}, "does not say the model_type"),
        ({"model_type": "nothing_of_mlx"}, "has no model of the type 'nothing_of_mlx'"),
        ({"vocab_size": None}, "says no vocab_size"),
        ({"hidden_size": 128}, "MLX: Expected shape"),
        ({"num_hidden_layers": 3}, "MLX: Missing"),
    ],
)
def test_what_mlx_lm_would_run_or_stumble_on_is_refused_with_a_sentence(
    tmp_path: Path, zygote: Zygote, changes: dict[str, Any], why: str
) -> None:
    folder = configured(save(tmp_path / "m"), {**CONFIG, **changes})
    with pytest.raises(Unfit, match=why):
        run(folder, zygote)


def test_a_program_in_the_folder_is_refused(tmp_path: Path, zygote: Zygote) -> None:
    folder = save(tmp_path / "m")
    (folder / "model.py").write_text("raise SystemExit")
    with pytest.raises(Unfit, match="a program, which is never run"):
        run(folder, zygote)
