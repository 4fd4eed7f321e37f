"""The Transformers driver with the real transformers and torch, with tiny random models, through the child processes of a node."""

from __future__ import annotations

import json
import shutil
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.base import (
    AnswersReport,
    CheckReport,
    Crashed,
    Event,
    Limits,
    LoadReport,
    MeasureReport,
    ModelDescription,
    RunFindings,
    TimedOut,
    Unfit,
    Unshaped,
    WorkOrder,
    WrongUnit,
)
from drivers.launch.launch import Zygote, measure
from drivers.testing.conformance import Subject, check_all
from drivers.transformers.units import CPU, GPU
from protocol.formats.examples import UNNAMED, pack_examples, text_value, unpack_examples

LIMITS = Limits(load_s=120, run_s=120)
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote("transformers").start() as started:
        yield started


def readable(folder: Path) -> None:
    for file in (folder, *folder.rglob("*")):
        file.chmod(0o755 if file.is_dir() else 0o644)  # a node of root runs models as nobody


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    import torch
    import transformers as hf

    torch.manual_seed(0)
    bert = hf.BertConfig(vocab_size=50, max_position_embeddings=64, **SMALL)
    vit = hf.ViTConfig(image_size=32, patch_size=8, **SMALL)
    t5 = hf.T5Config(vocab_size=50, d_model=32, d_ff=64, d_kv=8, num_layers=2, num_heads=4)
    nets = {
        "bert": hf.BertForSequenceClassification(bert),
        "vit": hf.ViTForImageClassification(vit),
        "half": hf.ViTForImageClassification(vit).to(torch.bfloat16),
        "t5": hf.T5Model(t5),
    }
    folder = tmp_path_factory.mktemp("transformers")
    for name, net in nets.items():
        net.save_pretrained(folder / name)
    nets["bert"].save_pretrained(folder / "parts", max_shard_size="20KB")
    readable(folder)
    return {name: folder / name for name in (*nets, "parts")}


def run(model: Path, zygote: Zygote, limits: Limits = LIMITS, **changes: Any) -> list[Event]:
    order = replace(WorkOrder(str(model), CPU, runs=4, loads=1, warmup=2, threads=1), **changes)
    return list(measure(order, limits, zygote))


def one(events: list[Event], kind: type[Any]) -> Any:
    return next(event for event in events if isinstance(event, kind))


def test_a_model_of_fixed_sizes_keeps_the_drivers_contract(models: dict[str, Path]) -> None:
    check_all(Subject("transformers", unit=CPU, model=str(models["vit"])))


def test_an_encoder_runs_at_the_orders_sizes_and_agrees_with_attention_written_out(
    models: dict[str, Path], zygote: Zygote
) -> None:
    events = run(models["bert"], zygote, dims={"sequence": 12}, batch=3, threads=2)
    described, checked = one(events, ModelDescription), one(events, CheckReport)
    assert described.shapes == {"input_ids": (3, 12), "attention_mask": (3, 12)}
    assert (described.unit, described.providers, described.threads) == (CPU, ("cpu",), 2)
    assert described.runtime.startswith("transformers ")
    assert "BertForSequenceClassification, float32, attention: sdpa" in described.notes
    assert checked.agrees is True
    assert "logits: 6 values" in checked.compared
    assert len(one(events, MeasureReport).samples_ns) == 4


def test_weights_in_parts_give_the_same_answer(models: dict[str, Path], zygote: Zygote) -> None:
    assert len(list(models["parts"].glob("*.safetensors"))) > 1
    sizes = {"sequence": 12}
    whole, parts = (run(models[name], zygote, dims=sizes) for name in ("bert", "parts"))
    assert one(whole, CheckReport).output_sha256 == one(parts, CheckReport).output_sha256


def test_sizes_that_nobody_gives_are_asked_for_and_wrong_ones_named(
    models: dict[str, Path], zygote: Zygote
) -> None:
    with pytest.raises(Unshaped, match=r"input_ids is batch×sequence.*--shape 'input_ids=1,128'"):
        run(models["bert"], zygote)
    with pytest.raises(Unshaped, match=r"input_ids 1×65"):
        run(models["bert"], zygote, dims={"sequence": 65})
    with pytest.raises(Unshaped, match="its axis 2 is 32, not 48"):
        run(models["vit"], zygote, shapes={"pixel_values": (1, 3, 48, 48)})


def test_half_precision_is_checked_against_float32(models: dict[str, Path], zygote: Zygote) -> None:
    events = run(models["half"], zygote)
    checked = one(events, CheckReport)
    assert (checked.agrees, checked.tolerance) == (True, 2e-2)
    assert one(events, ModelDescription).dtypes == {"pixel_values": "bfloat16"}


def test_an_encoder_and_a_decoder_have_a_length_each(models: dict[str, Path], zygote: Zygote) -> None:
    events = run(models["t5"], zygote, dims={"sequence": 9, "decoder_sequence": 4})
    assert one(events, ModelDescription).shapes["decoder_input_ids"] == (1, 4)
    assert one(events, CheckReport).agrees is True


def test_a_gpu_that_is_not_there_is_never_replaced(models: dict[str, Path], zygote: Zygote) -> None:
    import torch

    if not torch.cuda.is_available():
        with pytest.raises(WrongUnit, match=r"GPU \(Transformers\), but this torch .* finds no GPU"):
            run(models["vit"], zygote, unit=GPU)
    else:
        events = run(models["vit"], zygote, unit=GPU)
        assert one(events, ModelDescription).providers[0].startswith(("cuda: ", "rocm: "))
        assert one(events, CheckReport).agrees is True


# -- untrusted models ----------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(models: dict[str, Path], tmp_path: Path) -> Path:
    shutil.copytree(models["bert"], tmp_path / "model")
    return tmp_path / "model"


def configure(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


SIZES: dict[str, Any] = {"dims": {"sequence": 8}}


def test_code_in_the_folder_is_refused_and_never_run(copy: Path, zygote: Zygote, tmp_path: Path) -> None:
    (copy / "modeling_mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    configure(copy, auto_map={"AutoModel": "modeling_mine.Net", "AutoConfig": "modeling_mine.Config"})
    readable(copy)
    with pytest.raises(Unfit, match="a program, which is never run"):
        run(copy, zygote, **SIZES)
    (copy / "modeling_mine.py").unlink()
    with pytest.raises(Unfit, match="auto_map: the model brings its own code"):
        run(copy, zygote, **SIZES)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "of the type bert, its architecture LlamaForCausalLM"),
        ({"architectures": ["BertTokenizer"]}, "no model class 'BertTokenizer'"),
        ({"architectures": ["PreTrainedModel"]}, "no model class"),
        ({"model_type": "mine"}, "torch: ValueError"),
        ({"num_hidden_layers": 3}, r"the weights lack 'bert\.encoder\.layer\.2"),
        ({"vocab_size": 51}, "mismatch"),
        ({"hidden_act": "os.system"}, "torch: KeyError"),
    ],
)
def test_a_config_that_does_not_fit_its_weights_is_unfit(
    copy: Path, zygote: Zygote, changes: dict[str, Any], says: str
) -> None:
    configure(copy, **changes)
    with pytest.raises(Unfit, match=says):
        run(copy, zygote, **SIZES)


@pytest.mark.parametrize(
    "changes",
    [{"hidden_size": 4 * 10**9}, {"vocab_size": 10**12}, {"hidden_size": -4}, {"num_attention_heads": 0}],
    ids=str,
)
def test_sizes_that_no_machine_has_are_contained(copy: Path, zygote: Zygote, changes: dict[str, int]) -> None:
    configure(copy, **changes)
    with pytest.raises((Unfit, Crashed, TimedOut)):
        run(copy, zygote, Limits(load_s=20, run_s=20), **SIZES)


def test_broken_weights_are_unfit(copy: Path, zygote: Zygote) -> None:
    file = copy / "model.safetensors"
    good = file.read_bytes()
    for bad in (good[:-4], good[: len(good) // 2], bytes(range(256)) * 8, b"\xff" * 8 + good[8:]):
        file.write_bytes(bad)
        with pytest.raises(Unfit):
            run(copy, zygote, **SIZES)
    file.write_bytes(good)
    assert one(run(copy, zygote, **SIZES), LoadReport).load_ns > 0


# -- language models -----------------------------------------------------------------------------------------------------

LENGTHS = {"prompt": 12, "generate": 6}


@pytest.fixture(scope="module")
def languages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    import torch
    import transformers as hf

    torch.manual_seed(0)
    llama = hf.LlamaConfig(vocab_size=50, num_key_value_heads=2, max_position_embeddings=64, **SMALL)
    gpt2 = hf.GPT2Config(vocab_size=50, n_positions=32, n_embd=32, n_layer=2, n_head=4)
    window = hf.MistralConfig(vocab_size=50, num_key_value_heads=2, sliding_window=8, **SMALL)
    state = hf.MambaConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2)
    nets = {
        "llama": hf.LlamaForCausalLM(llama),
        "half": hf.LlamaForCausalLM(llama).to(torch.bfloat16),
        "gpt2": hf.GPT2LMHeadModel(gpt2),
        "window": hf.MistralForCausalLM(window),
        "state": hf.MambaForCausalLM(state),
        "encoder": hf.BertLMHeadModel(hf.BertConfig(vocab_size=50, **SMALL)),
    }
    folder = tmp_path_factory.mktemp("languages")
    for name, net in nets.items():
        net.save_pretrained(folder / name)
    readable(folder)
    return {name: folder / name for name in nets}


def test_a_language_model_keeps_the_drivers_contract(languages: dict[str, Path]) -> None:
    check_all(Subject("transformers", unit=CPU, model=str(languages["llama"]), dims=LENGTHS))


@pytest.mark.parametrize("name", ["llama", "half", "gpt2", "window"])
def test_generated_tokens_prompts_and_the_first_token_are_timed_apart(
    languages: dict[str, Path], zygote: Zygote, name: str
) -> None:
    events = run(languages[name], zygote, runs=9, dims=LENGTHS | {"depth": 10})
    described, checked = one(events, ModelDescription), one(events, CheckReport)
    assert described.shapes == {"prompt": (12,), "generate": (6,), "depth": (10,)}
    assert (
        "an inference is one generated token of llama-bench's tg6 @ d10, with random tokens"
        in described.notes
    )
    assert "prompts: 5 of pp12 @ d10" in described.notes
    assert checked.agrees is True, checked
    measured, found = one(events, MeasureReport), one(events, RunFindings)
    assert found.series["itl"] == measured.samples_ns
    assert len(found.series["ttft"]) == 5
    rates = {"output_tokens_per_s", "prompt_tokens_per_s", "d0_output_tokens_per_s", "d0_prompt_tokens_per_s"}
    assert rates | {"d0_ttft_ms_p50"} == found.figures.keys()
    assert found.figures["output_tokens_per_s"] == pytest.approx(9e9 / sum(measured.samples_ns))


def test_a_language_models_lengths_are_asked_for_and_too_long_ones_named(
    languages: dict[str, Path], zygote: Zygote
) -> None:
    with pytest.raises(Unshaped, match=r"prompt is prompt, generate is generate: give the sizes"):
        run(languages["llama"], zygote)
    with pytest.raises(Unshaped, match="one sequence is measured"):
        run(languages["llama"], zygote, dims=LENGTHS, batch=2)
    with pytest.raises(Unshaped, match="generate: 0 tokens"):
        run(languages["llama"], zygote, dims={"prompt": 3, "generate": 0})
    with pytest.raises(Unshaped, match=r"prompt 12, generate 6, depth 21.*index out of range"):
        run(languages["gpt2"], zygote, dims=LENGTHS | {"depth": 21})


def test_a_model_without_keys_and_values_is_unfit(languages: dict[str, Path], zygote: Zygote) -> None:
    with pytest.raises(Unfit, match="MambaForCausalLM takes no past_key_values"):
        run(languages["state"], zygote, dims=LENGTHS)
    with pytest.raises(Unfit, match="leaves no keys and values: is_decoder is not set"):
        run(languages["encoder"], zygote, dims=LENGTHS)


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_a_cache_that_is_wrong_is_found(languages: dict[str, Path]) -> None:
    import torch

    from drivers.transformers.causal import CausalModel
    from drivers.transformers.driver import TransformersDriver

    class Forgetful(CausalModel):
        def load(self) -> int:
            took_ns = super().load()
            forward = self._graph.module.forward

            def without(past_key_values: object = None, **given: Any) -> Any:
                return forward(**given)

            self._graph.module.forward = without
            return took_ns

    class Driver(TransformersDriver):
        def open(self, order: WorkOrder) -> CausalModel:
            opened = super().open(order)
            opened.__class__ = Forgetful
            assert isinstance(opened, CausalModel)
            return opened

    order = WorkOrder(str(languages["llama"]), CPU, runs=4, warmup=2, threads=1, dims=LENGTHS)
    threads = torch.get_num_threads()
    try:
        assert one(list(TransformersDriver().run(order)), CheckReport).agrees is True
        checked = one(list(Driver().run(order)), CheckReport)
    finally:
        torch.set_num_threads(threads)
    assert checked.agrees is False
    assert "token_logits" in checked.note


# -- texts ---------------------------------------------------------------------------------------------------------------

CHAT = "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} {% endfor %}<assistant>"


def with_tokenizer(model: Path, folder: Path, template: str = "") -> Path:
    """A copy of the model with a tokenizer that has one word for each of its 50 tokens."""
    import tokenizers
    import transformers as hf

    words = ["<unk>", "<s>", "</s>", "<user>", "<assistant>", *(f"w{at}" for at in range(45))]
    own = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: at for at, word in enumerate(words)}, "<unk>")
    )
    own.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=own, unk_token="<unk>", eos_token="</s>")
    if template:
        tokenizer.chat_template = template
    shutil.copytree(model, folder)
    tokenizer.save_pretrained(folder)
    folder.parent.chmod(0o755)
    readable(folder)
    return folder


def answers(model: Path, zygote: Zygote, *texts: str, **changes: Any) -> AnswersReport:
    file = model.with_suffix(".examples")
    file.write_bytes(pack_examples({UNNAMED: text_value(text)} for text in texts))
    file.chmod(0o644)
    return one(run(model, zygote, examples=str(file), **{"dims": LENGTHS, **changes}), AnswersReport)


def read(report: AnswersReport) -> list[str | None]:
    assert not report.why
    return [answer[UNNAMED].text for answer in unpack_examples(b64decode(report.answers))]


def by_transformers(model: Path, text: str, most: int) -> str:
    """The answer from the library's own loop."""
    import transformers as hf

    tokenizer = hf.AutoTokenizer.from_pretrained(model)
    net: Any = hf.AutoModelForCausalLM.from_pretrained(model)
    given = tokenizer(text, return_tensors="pt")
    made = net.generate(**given, do_sample=False, max_new_tokens=most, pad_token_id=0)
    return str(tokenizer.decode(made[0, given["input_ids"].shape[1] :], skip_special_tokens=True))


@pytest.mark.parametrize("name", ["llama", "gpt2", "window"])
def test_a_prompt_is_answered_as_by_transformers_own_loop(
    languages: dict[str, Path], zygote: Zygote, tmp_path: Path, name: str
) -> None:
    model = with_tokenizer(languages[name], tmp_path / "model")
    texts = ("w1 w2 w3", "w9 w8 w7 w6 w5 w4 w3 w2 w1")
    made = read(answers(model, zygote, *texts, dims=LENGTHS | {"depth": 10}))
    assert made == [by_transformers(model, text, LENGTHS["generate"]) for text in texts]
    assert all(made)
    assert read(answers(model, zygote, texts[0], dims=LENGTHS | {"generate": 2})) == [
        by_transformers(model, texts[0], 2)
    ]


def test_an_answer_ends_with_the_models_own_end(
    languages: dict[str, Path], zygote: Zygote, tmp_path: Path
) -> None:
    model = with_tokenizer(languages["llama"], tmp_path / "model")
    (whole,) = read(answers(model, zygote, "w1 w2 w3"))
    words = str(whole).split()
    assert len(words) == LENGTHS["generate"]
    end = words[3]
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5 + int(end[1:])]}))
    readable(model)
    assert read(answers(model, zygote, "w1 w2 w3")) == [" ".join(words[: words.index(end)])]


def test_a_chat_template_is_applied(languages: dict[str, Path], zygote: Zygote, tmp_path: Path) -> None:
    plain = with_tokenizer(languages["llama"], tmp_path / "plain")
    chat = with_tokenizer(languages["llama"], tmp_path / "chat", CHAT)
    assert read(answers(chat, zygote, "w1 w2")) == read(answers(plain, zygote, "<user> w1 w2 <assistant>"))
    broken = with_tokenizer(languages["llama"], tmp_path / "broken", "{{ raise_exception('no users') }}")
    assert "tokenizer or chat template fails: TemplateError: no users" in answers(broken, zygote, "w1").why


def test_what_cannot_be_answered_is_said_and_the_times_stand(
    languages: dict[str, Path], zygote: Zygote, tmp_path: Path
) -> None:
    model = with_tokenizer(languages["gpt2"], tmp_path / "model")
    report = answers(model, zygote, "w1", "w1 " * 27)
    assert (
        "example 2 of 2: its prompt of 27 tokens and an answer of up to 6 are more than the 32" in report.why
    )
    assert "the folder has no tokenizer" in answers(languages["llama"], zygote, "w1").why
    (model / "tokenizer.json").write_text("{")
    readable(model)
    assert "its tokenizer cannot be read" in answers(model, zygote, "w1").why
