"""A causal language model: tokens generated one by one with cached keys and values, and prompts. It uses the terms and figures of
`drivers.local.tokens`, so that rows of both runtimes can be compared."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from drivers.contract.base import Unfit
from drivers.local.language import LanguageModel, LanguageRun, inputs_by
from drivers.local.model import Prepared
from drivers.local.tokens import DEPTH, GENERATE, PROMPT, Tokens, sized
from drivers.torch.model import HALF
from drivers.torch.models import ModelGraph, as_arrays, torch_errors
from drivers.transformers.model import TransformersModel
from drivers.transformers.ports import vocabulary
from drivers.transformers.tokenizer import FolderTokenizer

DEFAULTS: Final = {DEPTH: 0}
"""Only the context may be left out."""


def generates(architecture: str) -> bool:
    """Whether it is one of transformers' causal language models."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    return architecture in set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())


@dataclass(slots=True)
class CausalSession:
    """One sequence in a model. See `drivers.local.tokens.TokenSession`."""

    torch: Any
    module: Any
    device: str
    wait: Callable[[], object]
    """Returns when the device has finished."""
    last_only: Mapping[str, int] = field(default_factory=dict)
    """Arguments that make the model compute only the logits of the last token."""
    _prefix: Any = None
    _cache: Any = None
    _logits: Any = None

    def batches(self, tokens: Tokens, each: int) -> list[Any]:
        ids = self.torch.tensor(tokens.tolist(), dtype=self.torch.int64, device=self.device)
        return list(ids.reshape(1, -1).split(each, dim=1))

    def step(self, batch: Any) -> None:
        given = {"past_key_values": self._cache} if self._cache is not None else {}
        answer = self.module(input_ids=batch, use_cache=True, **given, **self.last_only)
        self._cache, self._logits = answer.past_key_values, answer.logits
        self.wait()

    def decode(self, tokens: Tokens) -> None:
        """Decode all tokens at once."""
        for batch in self.batches(tokens, max(1, len(tokens))):
            self.step(batch)

    def fill(self, tokens: Tokens) -> None:
        """Start with these tokens as the prefix that `rewind` returns to."""
        self._prefix = self._cache = None
        if len(tokens):
            self.decode(tokens)
            self._prefix = self._cache
        self.rewind()

    def rewind(self) -> None:
        self._cache = copy.deepcopy(self._prefix)

    def logits(self) -> Any:
        """Logits of the last token."""
        return self._logits[0, -1]

    @property
    def caches(self) -> bool:
        """Whether the last step returned its keys and values."""
        return self._cache is not None


class CausalModel(LanguageModel, TransformersModel):
    _session: CausalSession

    def _graph_of(self, module: Any) -> ModelGraph:
        return ModelGraph(module, module, inputs_by(vocabulary(module.config)), (self.title_of(module),))

    def load(self) -> int:
        took_ns = super().load()
        module = self._graph.module
        takes = inspect.signature(module.forward).parameters
        if "past_key_values" not in takes:
            raise Unfit(
                f"{self._folder.architecture} takes no past_key_values: a cache of keys and values is needed"
            )
        last_only = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        self._session = CausalSession(self._torch, module, self._device, self._wait, last_only)
        return took_ns

    def prepare(self) -> Prepared:
        order, words = sized(self.order, DEFAULTS), partial(FolderTokenizer, self._folder)
        trained = getattr(self._graph.module.config, "max_position_embeddings", None)
        self._run = LanguageRun(order, self.inputs, self._session, torch_errors, self._arrays, words, trained)
        prepared = self._run.prepare(self._begin, self._prove)
        if self._graph.module.dtype in (self._torch.bfloat16, self._torch.float16):
            self.tolerance = HALF
        session, first = self._session, self._run.first

        def infer() -> None:
            session.rewind()
            session.step(first)

        self._infer = infer
        return prepared

    def _begin(self) -> None:
        if self._device.startswith("cuda"):
            self._torch.cuda.reset_peak_memory_stats(self._device)

    def _prove(self) -> None:
        """Check that the model keeps keys and values, and has positions for all tokens."""
        if not self._session.caches:
            raise Unfit(f"{self._folder.architecture} leaves no keys and values: is_decoder is not set")
        self._session.rewind()
        self._session.decode(max(self._run.fed[PROMPT], self._run.fed[GENERATE], key=len))

    def _arrays(self, after_prompt: Any, after_token: list[Any]) -> Mapping[str, Any]:
        return as_arrays({"prompt_logits": after_prompt, "token_logits": self._torch.stack(after_token)})

    def _on_cpu(self, prepared: Prepared, *, wide: bool) -> Mapping[str, Any]:
        """The logits of the same tokens in one pass, without a cache."""
        prompt, tokens = self._run.checked()
        torch = self._torch
        plain = self.reference_graph(wide=wide)
        with torch_errors(), torch.backends.mkldnn.flags(enabled=False):
            ids = torch.tensor([[*prompt.tolist(), *tokens.tolist()]])
            logits = plain.call(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 :]
            return as_arrays({"prompt_logits": logits[0], "token_logits": logits[1:]})

    def notes(self, prepared: Prepared) -> list[str]:
        return [*super().notes(prepared), *self._run.notes(prepared.shapes, "without a cache")]
