"""A model and its context in llama.cpp: tokens in, logits out, and back to an earlier state. The library is an argument.

The settings are those of llama-bench: batches of 2048 tokens, computed 512 at a time, a cache in float16, flash attention where llama.cpp
supports it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from drivers.contract.base import Crashed, Unfit, Unshaped
from drivers.llamacpp.library import LlamaLog
from drivers.llamacpp.tokenizer import GgufTokenizer

BATCH: Final = 2048
PIECE: Final = 512
ALL_LAYERS: Final = 999
NO_SPLIT: Final = 0
"""`LLAMA_SPLIT_MODE_NONE`: use one GPU."""

Tokens = np.ndarray[Any, Any]
"""Token ids as int32."""


@dataclass(frozen=True, slots=True)
class LlamaPlace:
    """Where and how a model runs."""

    threads: int
    gpu: int | None = None
    """Handle of the GPU's device; None: only the processor."""
    plain: bool = False
    """For the reference: without rearranging weights for the processor and without flash attention."""


class Session:
    """One sequence. Frees its memory when it is closed or garbage collected."""

    def __init__(self, lib: Any, log: LlamaLog, path: str, placement: LlamaPlace) -> None:
        """Load the model. Raises `Unfit`."""
        self._lib, self._log, self._placement = lib, log, placement
        self._model: Any = None
        self._context: Any = None
        options = lib.llama_model_default_params()
        self._devices = (ctypes.c_void_p * 2)(placement.gpu, None)
        options.devices = ctypes.cast(self._devices, ctypes.c_void_p)
        options.n_gpu_layers = 0 if placement.gpu is None else ALL_LAYERS
        options.split_mode = NO_SPLIT
        options.use_extra_bufts = not placement.plain
        log.clear()
        self._model = lib.llama_model_load_from_file(path.encode(), options)
        if not self._model:
            why = log.why()
            merge = "; merge its files with llama-gguf-split --merge" if "split" in why else ""
            raise Unfit(f"llama.cpp does not load it: {why}{merge}")
        if not lib.llama_model_has_decoder(self._model) or lib.llama_model_has_encoder(self._model):
            raise Unfit(
                "the model does not generate text token by token (an encoder, or an encoder with a decoder)"
            )
        self.vocabulary = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model)))
        if self.vocabulary < 1:
            raise Unfit("the model has no vocabulary")
        self._keeps_state = bool(
            lib.llama_model_is_recurrent(self._model)
            or lib.llama_model_is_hybrid(self._model)
            or lib.llama_model_n_swa(self._model) > 0
        )
        """The model's memory cannot be cut back, so it is saved and restored."""
        self._state: Any = None
        self._prefix: Tokens = np.zeros(0, np.int32)
        self._whole = False
        """Whether the prefix is in the memory."""

    def open(self, length: int) -> None:
        """Open a context for `length` tokens, in place of an earlier context. Raises `Unshaped`."""
        lib, placement = self._lib, self._placement
        self._close_context()
        options = lib.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = length, min(BATCH, length), min(PIECE, length)
        options.n_threads = options.n_threads_batch = placement.threads
        options.offload_kqv = options.op_offload = placement.gpu is not None
        options.swa_full = False
        options.no_perf = True
        if placement.plain:
            options.flash_attn_type = 0
        self._log.clear()
        self._context = lib.llama_init_from_model(self._model, options)
        if not self._context:
            raise Unshaped(
                f"llama.cpp has no room for {length} tokens: {self._log.why()}; give a smaller prompt, generate or depth"
            )
        self._memory = lib.llama_get_memory(self._context)

    @property
    def threads(self) -> int:
        return int(self._lib.llama_n_threads(self._context))

    @property
    def trained_length(self) -> int:
        return int(self._lib.llama_model_n_ctx_train(self._model))

    @property
    def description(self) -> str:
        """Description of the model, such as `llama 7B Q4_K - Medium`."""
        text = ctypes.create_string_buffer(128)
        self._lib.llama_model_desc(self._model, text, len(text))
        return text.value.decode(errors="replace")

    def batches(self, tokens: Tokens, each: int) -> list[Any]:
        """Batches of `each` tokens, to be decoded in order; `tokens` has to outlive them."""
        kind = ctypes.POINTER(self._lib.llama_token)
        return [
            self._lib.llama_batch_get_one(
                tokens[at : at + each].ctypes.data_as(kind), min(each, len(tokens) - at)
            )
            for at in range(0, len(tokens), each)
        ]

    def decode(self, tokens: Tokens) -> None:
        """Decode all `tokens`; decoding is complete when this returns. Raises `Crashed`."""
        for batch in self.batches(tokens, BATCH):
            self.step(batch)

    def step(self, batch: Any) -> None:
        """Decode one batch; decoding is complete when this returns. Raises `Crashed`."""
        code = self._lib.llama_decode(self._context, batch)
        if code:
            raise Crashed(f"llama_decode failed with {code}: {self._log.why()}")
        self._lib.llama_synchronize(self._context)

    def logits(self) -> np.ndarray[Any, Any]:
        """Logits of the last token: a view, valid until the next token is decoded."""
        pointer = self._lib.llama_get_logits_ith(self._context, -1)
        if not pointer:
            raise Unfit("the model gives no logits: it does not generate text")
        return np.ctypeslib.as_array(pointer, shape=(self.vocabulary,))

    def clear(self) -> None:
        """Forget all tokens."""
        self._lib.llama_memory_clear(self._memory, False)
        self._whole = False

    def fill(self, tokens: Tokens) -> None:
        """Fill the memory with these tokens and nothing else, as the prefix that `rewind` returns to."""
        self._prefix, self._state = tokens, None
        self.clear()
        self.decode(tokens)
        self._whole = True
        if self._keeps_state and len(tokens):
            size = int(self._lib.llama_state_seq_get_size(self._context, 0))
            self._state = (ctypes.c_uint8 * size)()
            if self._lib.llama_state_seq_get_data(self._context, self._state, size, 0) != size:
                self._state = None

    def rewind(self) -> None:
        """Forget everything after the prefix of the last `fill`."""
        if not len(self._prefix):
            self.clear()
            return
        cut = self._whole and not self._keeps_state
        if cut and self._lib.llama_memory_seq_rm(self._memory, 0, len(self._prefix), -1):
            return
        self.clear()
        if self._state is None or not self._lib.llama_state_seq_set_data(
            self._context, self._state, len(self._state), 0
        ):
            self.decode(self._prefix)
        self._whole = True

    def words(self) -> GgufTokenizer:
        """The file's tokenizer. Raises `Unfit`."""
        return GgufTokenizer(self._lib, self._model)

    def close(self) -> None:
        self._close_context()
        if self._model:
            self._lib.llama_model_free(self._model)
        self._model = None

    def _close_context(self) -> None:
        if self._context:
            self._lib.llama_free(self._context)
        self._context = None

    def __del__(self) -> None:
        self.close()
