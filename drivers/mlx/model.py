"""One order's language model by MLX: tokens generated one by one with cached keys and values, and prompts. It uses the terms and figures of
`drivers.local.tokens`, so that its rows can be compared with those of other language-model drivers.

Imported late, in the child or its zygote.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from drivers.contract.base import OutOfMemory, Unfit, WorkOrder
from drivers.contract.registry import BROKEN_DRIVER_ERRORS
from drivers.local.language import LanguageModel, LanguageRun, inputs_by
from drivers.local.model import ExecutionPlace, Prepared
from drivers.local.tokens import Tokens, sized
from drivers.mlx.runtime import check_architecture, load_model, parts, runtime, title
from drivers.mlx.units import GPU, device_for, provider, verify_device
from drivers.transformers.folder import open_folder
from drivers.transformers.tokenizer import FolderTokenizer

HALF: Final = 2e-2
"""Tolerance of 16-bit types, relative to the largest magnitude."""
_MEMORY: Final = re.compile(r"out of memory|failed to allocate|unable to allocate|bad_alloc", re.IGNORECASE)


@dataclass(slots=True)
class MlxSession:
    """One sequence in a model. See `drivers.local.tokens.TokenSession`."""

    mx: Any
    model: Any
    caches: Any
    """`mlx_lm.models.cache`."""
    _prefix: Tokens = field(default_factory=lambda: np.zeros(0, np.int32))
    _cache: list[Any] = field(default_factory=list)
    _behind: int = 0
    """Tokens after the prefix."""
    _logits: Any = None

    def batches(self, tokens: Tokens, each: int) -> list[Any]:
        parts = [tokens[at : at + each] for at in range(0, len(tokens), each)]
        made = [self.mx.array(np.ascontiguousarray(part, np.int32))[None] for part in parts]
        self.mx.eval(made)
        return made

    def step(self, batch: Any) -> None:
        """Decode a batch. MLX computes only when a value is requested: here the logits of the last token, and the state of the cache."""
        self._logits = self.model(batch, cache=self._cache)[0, -1]
        self.mx.eval(self._logits, [one.state for one in self._cache])
        self._behind += batch.shape[1]

    def decode(self, tokens: Tokens) -> None:
        """Decode all tokens at once."""
        for batch in self.batches(tokens, max(1, len(tokens))):
            self.step(batch)

    def fill(self, tokens: Tokens) -> None:
        """Start with these tokens as the prefix that `rewind` returns to."""
        self._prefix, self._cache = tokens, self.caches.make_prompt_cache(self.model)
        self.decode(tokens)
        self._behind = 0

    def rewind(self) -> None:
        if not self._behind:
            return
        if self.caches.can_trim_prompt_cache(self._cache):
            self.caches.trim_prompt_cache(self._cache, self._behind)
            self._behind = 0
        else:  # such as states of recurrent layers
            self.fill(self._prefix)

    def logits(self) -> Any:
        """Logits of the last token, as an array."""
        return np.array(self._logits.astype(self.mx.float32))


class MlxModel(LanguageModel):
    _session: MlxSession

    def __init__(self, order: WorkOrder) -> None:
        self._mx = mx = runtime()
        super().__init__(order, title(mx))
        self.threads = 0  # MLX uses its own threads, and does not report how many
        self._device = device_for(mx, order.unit)
        self._folder = open_folder(Path(order.model), quantised=True)
        check_architecture(self._folder.config)
        self.inputs = inputs_by(self._folder.config.get("vocab_size"))
        mx.set_default_device(self._device)

    def load(self) -> int:
        began = time.perf_counter_ns()
        with translated():
            model = load_model(self._folder.path)
        took_ns = time.perf_counter_ns() - began
        self._session = MlxSession(self._mx, model, parts()[1])
        return took_ns

    def verify(self) -> None:
        verify_device(self._mx, self.order.unit, self._device)

    def prepare(self) -> Prepared:
        words = partial(FolderTokenizer, self._folder)
        trained = self._folder.config.get("max_position_embeddings")
        self._run = LanguageRun(
            sized(self.order), self.inputs, self._session, translated, _arrays, words, trained
        )
        return self._run.prepare(self._mx.reset_peak_memory, self._see_digits)

    def _see_digits(self) -> None:
        if self._session._logits.dtype in (self._mx.bfloat16, self._mx.float16):
            self.tolerance = HALF

    def reference(self, prepared: Prepared) -> Mapping[str, Any]:
        """The same tokens in one pass on the CPU, in float32, without a cache."""
        prompt, tokens = self._run.checked()
        mx = self._mx
        with translated():
            mx.set_default_device(mx.Device(mx.cpu, 0))
            try:
                plain = load_model(self._folder.path)
                plain.set_dtype(mx.float32)
                ids = mx.array(np.concatenate([prompt, tokens]).astype(np.int32))[None]
                logits = np.array(plain(ids)[0, len(prompt) - 1 :])
            finally:
                mx.set_default_device(self._device)
        return {"prompt_logits": logits[0], "token_logits": logits[1:]}

    def figures(self) -> dict[str, float]:
        figures = super().figures()
        if self.order.unit == GPU:
            with translated():
                figures["gpu_peak_bytes"] = float(self._mx.get_peak_memory())
        return figures

    def ran_on(self, prepared: Prepared) -> ExecutionPlace:
        return ExecutionPlace(self.order.unit, (provider(self._mx, self._device),))

    def notes(self, prepared: Prepared) -> list[str]:
        notes = self._run.notes(prepared.shapes, "on the CPU in float32, without a cache")
        if self.order.threads:
            notes.append(f"threads: {self.order.threads} requested; MLX chooses its own number")
        if quantised := self._folder.config.get("quantization"):
            notes.append(f"quantised: {str(quantised)[:100]}")
        return notes


def _arrays(after_prompt: Any, after_token: list[Any]) -> Mapping[str, Any]:
    return {"prompt_logits": after_prompt, "token_logits": np.stack(after_token)}


@contextmanager
def translated() -> Iterator[None]:
    """Turn errors of MLX and mlx-lm into errors of the contract."""
    try:
        yield
    except BROKEN_DRIVER_ERRORS as why:
        text = " ".join(str(why).split())[:300]
        kind = OutOfMemory if _MEMORY.search(text) else Unfit
        raise kind(f"MLX: {text or type(why).__name__}") from why
