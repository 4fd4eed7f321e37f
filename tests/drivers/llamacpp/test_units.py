"""The llama.cpp units, their refusals, and the driver without its runtime. The library is a double that only lists what it has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drivers.contract.base import Unfit, WorkOrder, WrongUnit, formats_of, made_samples
from drivers.llamacpp import driver, library
from drivers.llamacpp.driver import LlamaCppDriver
from drivers.llamacpp.library import LlamaLog
from drivers.llamacpp.samples import transformer
from drivers.llamacpp.units import CPU, GPU, UNITS, GgmlDevice, first_gpu, show_only, verify_offload
from protocol.formats.frameworks import FORMATS_BY_FRAMEWORK, framework_of
from protocol.formats.model_files import ModelFormat, read_format
from scheduler.campaign.fields import UNITS as KNOWN


def ggml(*kinds: int) -> Any:
    def devices() -> Iterator[tuple[int, GgmlDevice]]:
        for at, kind in enumerate(kinds):
            yield kind, GgmlDevice(100 + at, f"D{at}", f"kind {kind}")

    return SimpleNamespace(devices=devices)


def build(gpu: bool) -> Any:
    return SimpleNamespace(llama_supports_gpu_offload=lambda: gpu)


def test_its_units_and_formats_are_those_that_campaigns_know() -> None:
    assert set(UNITS) <= set(KNOWN)
    assert all(formats_of(LlamaCppDriver()) == FORMATS_BY_FRAMEWORK[framework_of(unit)] for unit in UNITS)


def test_a_gpu_is_asked_for_by_name_and_never_replaced() -> None:
    assert first_gpu(build(True), ggml(0, 3, 1)).shown == "D2: kind 1"
    assert first_gpu(build(True), ggml(0, 2)).handle == 101
    with pytest.raises(WrongUnit, match="CMAKE_ARGS=-DGGML_CUDA=on"):
        first_gpu(build(False), ggml(0, 1))
    with pytest.raises(WrongUnit, match="does not find the GPU 'GPU-77'"):
        first_gpu(build(True), ggml(0, 3), "GPU-77")


def test_the_other_gpus_are_hidden() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}
    show_only("", environ)
    assert environ == {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}
    show_only("GPU-2", environ)
    assert environ == {"CUDA_VISIBLE_DEVICES": "GPU-2", "HIP_VISIBLE_DEVICES": "GPU-2"}
    show_only("1", environ)
    assert environ["GGML_VK_VISIBLE_DEVICES"] == "1"


def test_layers_that_stayed_behind_are_another_unit() -> None:
    verify_offload(GPU, ["load_tensors: offloaded 33/33 layers to GPU"])
    with pytest.raises(WrongUnit, match="12 of 33 layers"):
        verify_offload(GPU, ["load_tensors: offloaded 12/33 layers to GPU"])
    with pytest.raises(WrongUnit, match="does not say"):
        verify_offload(GPU, ["load_tensors: CPU_Mapped model buffer size = 1 MiB"])


def test_the_reason_is_llama_cpps_first_error() -> None:
    log = LlamaLog()
    assert log.why() == "it gives no reason"
    log.take(2, b"loading\n", None)
    log.take(4, b"llama_model_load: error loading model: unknown model architecture: \xff'clip'\n", None)
    log.take(4, b"llama_model_load_from_file_impl: failed to load model\n", None)
    assert log.why().startswith("error loading model: unknown model architecture: ")
    assert list(log.lines) == ["loading"]
    log.clear()
    assert not log.errors


def test_without_the_package_there_are_no_units_and_an_order_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(driver, "find_spec", lambda name: None)
    monkeypatch.setattr(library.importlib, "import_module", missing)
    library.runtime.cache_clear()
    assert LlamaCppDriver().units() == ()
    model = tmp_path / "m.gguf"
    model.write_bytes(transformer(32, 1, 64))
    with pytest.raises(Unfit, match=r"pip install 'sark-node\[llamacpp\]'"):
        LlamaCppDriver().open(WorkOrder(str(model), CPU))
    library.runtime.cache_clear()


def test_what_is_no_gguf_is_refused_before_llama_cpp_sees_it(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGML" + bytes(64))
    with pytest.raises(Unfit, match=r"not a GGUF model.*convert_hf_to_gguf"):
        LlamaCppDriver().open(WorkOrder(str(model), CPU))
    with pytest.raises(Unfit, match="no such file"):
        LlamaCppDriver().open(WorkOrder(str(tmp_path / "none.gguf"), CPU))
    with pytest.raises(WrongUnit, match="unknown unit 'NPU"):
        LlamaCppDriver().open(WorkOrder(str(model), "NPU (llama.cpp)"))


def test_its_samples_are_gguf_files_without_gaps(tmp_path: Path) -> None:
    small, large = made_samples(LlamaCppDriver())
    assert (small.name, large.name) == ("tiny.gguf", "chain.gguf")
    model = tmp_path / "m.gguf"
    model.write_bytes(transformer(32, 1, 64))
    assert read_format(model) is ModelFormat.GGUF
    assert len(model.read_bytes()) % 32 == 0
    assert len(small.content) < 100_000 < len(large.content)
