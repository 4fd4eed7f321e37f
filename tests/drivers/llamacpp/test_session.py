"""A context in llama.cpp and rewinding it. The library is a double that remembers the tokens it has seen."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from drivers.contract.base import Crashed, Unfit, Unshaped
from drivers.llamacpp.library import LlamaLog
from drivers.llamacpp.session import BATCH, LlamaPlace, Session


class Double:
    """A library with one model."""

    llama_token = ctypes.c_int32

    def __init__(self, recurrent: bool = False, **says: Any) -> None:
        self.memory: list[int] = []
        self.calls: list[str] = []
        self.recurrent = recurrent
        self.options: Any = None
        self.room: Any = None
        self.says = {"load": 1, "init": 1, "decoder": True, "encoder": False, "decode": 0} | says

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.answer(name.removeprefix("llama_"), *arguments)

    def answer(self, name: str, *given: Any) -> Any:
        self.calls.append(name)
        match name:
            case "model_default_params" | "context_default_params":
                return SimpleNamespace()
            case "model_load_from_file":
                self.options = given[1]
                return self.says["load"]
            case "init_from_model":
                self.room = given[1]
                return self.says["init"]
            case "batch_get_one":
                return [given[0][at] for at in range(given[1])]
            case "decode":
                self.memory += given[1]
                return self.says["decode"]
            case "memory_clear":
                self.memory.clear()
            case "memory_seq_rm":
                if self.recurrent:
                    return False
                del self.memory[given[2] :]
                return True
            case "state_seq_get_size":
                return len(self.memory)
            case "state_seq_get_data":
                given[1][:] = self.memory
                return given[2]
            case "state_seq_set_data":
                self.memory = list(given[1])
                return given[2]
        simple = {
            "model_has_decoder": self.says["decoder"],
            "model_has_encoder": self.says["encoder"],
            "vocab_n_tokens": 300,
            "model_is_recurrent": self.recurrent,
            "n_threads": 3,
        }
        return simple.get(name, 0)


def session(lib: Any, placement: LlamaPlace = LlamaPlace(3)) -> Session:
    made = Session(lib, LlamaLog(), "m.gguf", placement)
    made.open(64)
    return made


def tokens(*values: int) -> Any:
    return np.array(values, np.int32)


def test_the_processor_alone_has_no_device_and_the_gpu_has_one() -> None:
    lib = Double()
    made = session(lib)
    devices = ctypes.cast(lib.options.devices, ctypes.POINTER(ctypes.c_void_p))
    assert (lib.options.n_gpu_layers, devices[0]) == (0, None)
    assert (lib.room.offload_kqv, lib.room.op_offload) == (False, False)
    assert made.threads == 3
    lib = Double()
    kept = session(lib, LlamaPlace(3, gpu=4096))
    devices = ctypes.cast(lib.options.devices, ctypes.POINTER(ctypes.c_void_p))
    assert (devices[0], devices[1]) == (4096, None)
    assert lib.options.n_gpu_layers > 500
    assert lib.room.offload_kqv is True
    assert kept.threads == 3


def test_the_way_back_is_to_the_prefix_whatever_came_after() -> None:
    for recurrent in (False, True):
        lib = Double(recurrent)
        made = session(lib)
        made.fill(tokens(1, 2, 3))
        made.decode(tokens(4, 5))
        made.rewind()
        assert lib.memory == [1, 2, 3]
        assert ("state_seq_set_data" in lib.calls) is recurrent
        made.clear()
        made.decode(tokens(9, 9, 9, 9))
        made.rewind()
        assert lib.memory == [1, 2, 3]
        made.fill(tokens())
        made.decode(tokens(7))
        made.rewind()
        assert lib.memory == []


def test_long_prompts_go_in_batches() -> None:
    lib = Double()
    session(lib).decode(np.arange(BATCH + 1, dtype=np.int32))
    assert lib.calls.count("decode") == 2
    assert lib.memory == list(range(BATCH + 1))


def test_what_llama_cpp_refuses_is_said_in_a_sentence() -> None:
    with pytest.raises(Unfit, match=r"llama.cpp does not load it: it gives no reason"):
        session(Double(load=0))
    with pytest.raises(Unfit, match="does not generate text"):
        session(Double(decoder=False))
    with pytest.raises(Unfit, match="does not generate text"):
        session(Double(encoder=True))
    with pytest.raises(Unshaped, match=r"no room for 64 tokens.*smaller prompt, generate or depth"):
        session(Double(init=0))
    with pytest.raises(Crashed, match="llama_decode failed with -3"):
        session(Double(decode=-3)).decode(tokens(1))


def test_memory_is_freed_once() -> None:
    lib = Double()
    made = session(lib)
    made.open(128)
    assert (lib.room.n_ctx, lib.calls.count("free")) == (128, 1), "a context takes the place of the last"
    made.close()
    made.close()
    assert (lib.calls.count("free"), lib.calls.count("model_free")) == (2, 1)
    with pytest.raises(Unfit):
        Session(lib := Double(decoder=False), LlamaLog(), "m.gguf", LlamaPlace(1))
    assert lib.calls.count("model_free") == 1
