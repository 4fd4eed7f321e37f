"""The llama.cpp driver with a real llama.cpp, through the child processes that a node uses. The package gguf writes the models."""

from __future__ import annotations

import struct
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
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
    OutputReport,
    RunFindings,
    Unfit,
    Unshaped,
    WorkOrder,
    WrongUnit,
)
from drivers.launch.launch import Zygote, measure
from drivers.llamacpp.samples import gguf_file, transformer
from drivers.testing.conformance import Subject, check_all
from protocol.formats.examples import UNNAMED, pack_examples, text_value, unpack_examples

CPU, GPU = "CPU (llama.cpp)", "GPU (llama.cpp)"
LIMITS = Limits(load_s=60, run_s=120)
WIDTH, LAYERS, VOCABULARY = 64, 2, 288
SMALL = {"prompt": 32, "generate": 16}


def write(path: Path, kind: gguf.GGMLQuantizationType, template: str = "", **fields: int) -> Path:
    """Write a llama model with random weights and a vocabulary of bytes."""
    numbers = {"layers": LAYERS, "heads": 4, "kv_heads": 2} | fields
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(2048)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(numbers["layers"])
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(numbers["heads"])
    writer.add_head_count_kv(numbers["kv_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("llama")
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += [f"w{at}" for at in range(VOCABULARY - len(words))]
    writer.add_token_list(words)
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * (VOCABULARY - 259)])
    if template:
        writer.add_chat_template(template)
    source = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        if len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, np.float32))
            return
        values = (source.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    add("token_embd.weight", VOCABULARY, WIDTH)
    add("output_norm.weight", WIDTH)
    add("output.weight", VOCABULARY, WIDTH)
    for layer in range(LAYERS):
        for name, *shape in (
            ("attn_norm", WIDTH),
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", WIDTH // 2, WIDTH),
            ("attn_v", WIDTH // 2, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_norm", WIDTH),
            ("ffn_gate", 2 * WIDTH, WIDTH),
            ("ffn_up", 2 * WIDTH, WIDTH),
            ("ffn_down", WIDTH, 2 * WIDTH),
        ):
            add(f"blk.{layer}.{name}.weight", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.chmod(0o644)  # a node of root runs models as nobody
    return path


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote("llamacpp").start() as started:
        yield started


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("gguf")
    kinds = gguf.GGMLQuantizationType
    return {
        name: write(folder / f"{name}.gguf", kind)
        for name, kind in (("f16", kinds.F16), ("q8", kinds.Q8_0), ("q4", kinds.Q4_0))
    }


def run(model: Path, zygote: Zygote, **changes: Any) -> list[Event]:
    order = replace(WorkOrder(str(model), CPU, runs=8, loads=2, warmup=2, threads=1, dims=SMALL), **changes)
    return list(measure(order, LIMITS, zygote))


def one(events: list[Event], kind: type[Any]) -> Any:
    return next(event for event in events if isinstance(event, kind))


def test_it_keeps_the_drivers_contract(models: dict[str, Path]) -> None:
    check_all(Subject("llamacpp", unit=CPU, model=str(models["f16"]), dims=SMALL))


@pytest.mark.parametrize("name", ["f16", "q8", "q4"])
def test_a_model_runs_and_its_logits_are_those_of_one_thread(
    models: dict[str, Path], zygote: Zygote, name: str
) -> None:
    events = run(models[name], zygote, threads=2)
    described, checked, found = (one(events, kind) for kind in (ModelDescription, CheckReport, RunFindings))
    assert (described.unit, described.providers) == (CPU, ("cpu",))
    assert described.shapes == {"prompt": (32,), "generate": (16,), "depth": (0,)}
    assert set(described.dtypes.values()) == {"int32"}
    assert any("tg16" in note for note in described.notes)
    assert any("16 tokens of the prompt at once" in note for note in described.notes)
    assert checked.agrees is True, checked
    assert checked.max_error is not None
    assert checked.max_error > 0, "the same kernels would not have been compared with others"
    assert {"output_tokens_per_s", "prompt_tokens_per_s"} == set(found.figures)
    assert len(found.series["ttft"]) == 5
    first = one(events, MeasureReport)
    assert found.series["itl"] == first.samples_ns
    assert found.figures["output_tokens_per_s"] == pytest.approx(
        len(first.samples_ns) * 1e9 / sum(first.samples_ns)
    )
    assert sum(isinstance(event, LoadReport) for event in events) == 3


def test_threads_are_read_back(models: dict[str, Path], zygote: Zygote) -> None:
    for threads in (1, 2):
        assert one(run(models["f16"], zygote, threads=threads), ModelDescription).threads == threads


def test_a_context_before_it_takes_time_and_is_in_the_row(models: dict[str, Path], zygote: Zygote) -> None:
    events = run(models["f16"], zygote, runs=40, loads=1, dims=SMALL | {"depth": 1500})
    described, found = one(events, ModelDescription), one(events, RunFindings)
    assert described.shapes["depth"] == (1500,)
    assert any("pp32 @ d1500" in note for note in described.notes)
    assert {"d0_output_tokens_per_s", "d0_prompt_tokens_per_s", "d0_ttft_ms_p50"} < set(found.figures)
    assert one(events, CheckReport).agrees is True
    longer = one(run(models["f16"], zygote, dims=SMALL | {"depth": 4000}), ModelDescription)
    assert any("longer than the 2048 tokens" in note for note in longer.notes)


def test_each_launch_gives_the_same_outputs_and_another_seed_others(
    models: dict[str, Path], zygote: Zygote
) -> None:
    def outputs(seed: int, runs: int) -> str:
        events = run(models["q8"], zygote, seed=seed, runs=runs, loads=1, witnessed=True)
        return str(one(events, OutputReport).output_sha256)

    assert outputs(1, 3) == outputs(1, 20)
    assert outputs(1, 3) != outputs(2, 3)


def test_sizes_that_nothing_can_hold_are_refused(models: dict[str, Path], zygote: Zygote) -> None:
    for dims, why in (
        ({"prompt": 0}, "give at least 1"),
        ({"depth": 2**31}, "more than llama.cpp can count"),
        ({"depth": 200_000_000}, "no room for 200000"),
    ):
        with pytest.raises(Unshaped, match=why):
            run(models["f16"], zygote, dims=SMALL | dims)
    with pytest.raises(Unshaped, match="write batch: 1"):
        run(models["f16"], zygote, batch=2)
    assert one(run(models["f16"], zygote, batch=1), ModelDescription).batch == 1


def test_a_gpu_that_is_not_there_is_never_replaced(models: dict[str, Path], zygote: Zygote) -> None:
    import llama_cpp

    if not llama_cpp.llama_supports_gpu_offload():
        with pytest.raises(WrongUnit, match="supports only the processor"):
            run(models["f16"], zygote, unit=GPU)
    else:
        assert one(run(models["f16"], zygote, unit=GPU), CheckReport).agrees is True


# -- texts ---------------------------------------------------------------------------------------------------------------

CHATML = """{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def answers(model: Path, zygote: Zygote, *texts: str, **changes: Any) -> AnswersReport:
    file = model.with_suffix(".examples")
    file.write_bytes(pack_examples({UNNAMED: text_value(text)} for text in texts))
    file.chmod(0o644)
    return one(run(model, zygote, examples=str(file), **changes), AnswersReport)


def read(report: AnswersReport) -> list[str | None]:
    assert not report.why
    return [answer[UNNAMED].text for answer in unpack_examples(b64decode(report.answers))]


def by_llama_cpp_python(model: Path, text: str, most: int) -> str:
    """The answer from the package's own loop, with greedy sampling."""
    import llama_cpp

    own = llama_cpp.Llama(
        str(model), n_ctx=2048, n_threads=1, n_threads_batch=1, flash_attn=True, verbose=False
    )
    prompt, made = own.tokenize(text.encode()), list[int]()
    for token in own.generate(prompt, temp=0.0, repeat_penalty=1.0):
        if token == own.token_eos() or len(made) == most:
            break
        made.append(token)
    return own.detokenize(made, prompt).decode(errors="replace")


def test_a_prompt_is_answered_as_by_llama_cpp_python(models: dict[str, Path], zygote: Zygote) -> None:
    texts = ("Summarise this.", "Ein Text mit Ümlaut und 漢字.")
    made = read(answers(models["f16"], zygote, *texts, dims=SMALL | {"depth": 100}))
    assert made == [by_llama_cpp_python(models["f16"], text, SMALL["generate"]) for text in texts]
    assert made == read(answers(models["f16"], zygote, *texts))
    assert made[0] != made[1]
    longer = read(answers(models["f16"], zygote, texts[0], dims=SMALL | {"generate": 40}))
    assert str(longer[0]).startswith(str(made[0]).rstrip("\ufffd"))
    assert len(str(longer[0])) > len(str(made[0]))


def test_a_chat_template_is_written_and_never_run(
    models: dict[str, Path], zygote: Zygote, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    kind = gguf.GGMLQuantizationType.F16
    chat = write(tmp_path / "chat.gguf", kind, CHATML)
    told = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert read(answers(chat, zygote, "Hello")) == read(answers(models["f16"], zygote, told))
    odd = write(tmp_path / "odd.gguf", kind, "{{ cycler.__init__.__globals__.os.system('true') }}")
    assert "does not know the chat template" in answers(odd, zygote, "Hello").why


def test_what_cannot_be_answered_is_said_and_the_times_stand(
    models: dict[str, Path], zygote: Zygote, tmp_path: Path
) -> None:
    report = answers(models["f16"], zygote, "Hello", "x" * 3000)
    assert "example 2 of 2: its prompt of 300" in report.why
    assert "more than the 2048 tokens of the model's context" in report.why
    model = tmp_path / "mute.gguf"
    model.write_bytes(SOUND)
    model.chmod(0o644)
    tmp_path.chmod(0o755)
    assert "the file has no tokenizer" in answers(model, zygote, "Hello").why


# -- untrusted models ----------------------------------------------------------------------------------------------------


def fields(**changes: Any) -> dict[str, int | float | str]:
    """The fields of a small model, some of them changed."""
    own: dict[str, int | float | str] = {
        "general.architecture": "llama",
        "llama.vocab_size": 64,
        "llama.context_length": 64,
        "llama.embedding_length": 32,
        "llama.block_count": 1,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "no_vocab",
    }
    return own | {key.replace("__", "."): value for key, value in changes.items()}


SOUND = transformer(32, 1, 64)
HEADER = b"GGUF" + struct.pack("<I", 3)
HOSTILE = {
    "magic alone": b"GGUF",
    "version 0": b"GGUF" + bytes(60),
    "another version": b"GGUF" + struct.pack("<I", 77) + SOUND[8:],
    "other byte order": b"GGUF" + struct.pack(">I", 3) + SOUND[8:],
    "no tensors": HEADER + struct.pack("<QQ", 0, 0),
    "2^60 tensors": HEADER + struct.pack("<QQ", 2**60, 9) + SOUND[24:],
    "2^60 fields": HEADER + struct.pack("<QQ", 12, 2**60) + SOUND[24:],
    "negative counts": HEADER + struct.pack("<qq", -1, -1) + SOUND[24:],
    "a key of 2^62 bytes": HEADER + struct.pack("<QQQ", 1, 1, 2**62) + bytes(64),
    "an array of 2^40": HEADER + struct.pack("<QQQ1sIIQ", 0, 1, 1, b"a", 9, 4, 2**40) + bytes(64),
    "an array of 2^40 texts": HEADER + struct.pack("<QQQ1sIIQ", 0, 1, 1, b"a", 9, 8, 2**40) + bytes(64),
    "half": SOUND[: len(SOUND) // 2],
    "all but a byte": SOUND[:-1],
    "cut in the header": SOUND[:200],
    "cut in a tensor's name": SOUND[:500],
    "offsets far away": SOUND.replace(struct.pack("<IQ", 1, 4224), struct.pack("<IQ", 1, 2**62)),
    "an unknown type": SOUND.replace(struct.pack("<IQ", 1, 4224), struct.pack("<IQ", 9999, 4224)),
    "random": HEADER + np.random.default_rng(1).bytes(5000),
    "alignment 0": gguf_file(fields(general__alignment=0), {"token_embd.weight": (64, 32)}),
    "alignment 2^31": gguf_file(fields(general__alignment=2**31), {"token_embd.weight": (64, 32)}),
    "2^32-1 layers": gguf_file(fields(llama__block_count=2**32 - 1), {"token_embd.weight": (64, 32)}),
    "no heads": gguf_file(fields(llama__attention__head_count=0), {"token_embd.weight": (64, 32)}),
    "2^32-1 words": gguf_file(fields(llama__vocab_size=2**32 - 1), {"token_embd.weight": (64, 32)}),
    "a width of 0": gguf_file(fields(llama__embedding_length=0), {"token_embd.weight": (64, 32)}),
    "other shapes": gguf_file(fields(), {"token_embd.weight": (32, 64)}),
    "an unknown architecture": gguf_file(fields(general__architecture="x" * 4000), {"a.weight": (8, 32)}),
    "a projector": gguf_file(fields(general__architecture="clip"), {"a.weight": (8, 32)}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_or_its_crash_contained(name: str, zygote: Zygote, tmp_path: Path) -> None:
    assert HOSTILE[name] != SOUND
    model = tmp_path / "m.gguf"
    model.write_bytes(HOSTILE[name])
    model.chmod(0o644)
    tmp_path.chmod(0o755)
    with pytest.raises((Unfit, Crashed)) as caught:
        run(model, zygote, loads=1)
    assert "no reason" not in str(caught.value)


def test_one_of_several_files_is_told_what_to_do(zygote: Zygote, tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(model, "llama")
    writer.add_uint16("split.no", 0)
    writer.add_uint16("split.count", 3)
    writer.add_tensor("token_embd.weight", np.zeros((64, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model.chmod(0o644)
    tmp_path.chmod(0o755)
    with pytest.raises(Unfit, match="llama-gguf-split --merge"):
        run(model, zygote)


def test_weights_that_are_no_numbers_are_told(zygote: Zygote, tmp_path: Path) -> None:
    size = 64 * 32 * 2  # of the last tensor
    model = tmp_path / "nan.gguf"
    model.write_bytes(SOUND[:-size] + b"\xff" * size)
    model.chmod(0o644)
    tmp_path.chmod(0o755)
    checked = one(run(model, zygote, loads=1), CheckReport)
    assert checked.agrees is False
    assert "contains only NaN" in checked.note
