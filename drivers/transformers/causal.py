"""A causal language model: tokens generated one by one on cached keys and values, and prompts, in the words and figures of
`drivers.local.tokens`, so that both runtimes' rows can be compared.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from drivers.contract import memory
from drivers.contract.base import MeasureReport, ProgressReport, Unfit, Unshaped, WorkOrder
from drivers.inputs.feeds import Shapes, find_runnable, make_feeds
from drivers.local.greedy import answer, room_of
from drivers.local.model import Prepared
from drivers.local.tokens import (
    DEPTH,
    GENERATE,
    PROMPT,
    PromptTimes,
    TokenLoop,
    Tokens,
    bench_words,
    inputs_of,
    room_for,
    token_figures,
)
from drivers.torch.model import HALF
from drivers.torch.models import ModelGraph, as_arrays, torch_errors
from drivers.transformers.model import TransformersModel
from drivers.transformers.ports import vocabulary
from drivers.transformers.words import FolderWords

CHECKED: Final = 512
"""Tokens of the prompt behind which the logits are compared …"""
STEPS: Final = 8
"""… and tokens after them, one by one."""


def generates(architecture: str) -> bool:
    """Whether it is one of transformers' causal language models."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    return architecture in set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())


def sized(order: WorkOrder) -> WorkOrder:
    """The order with an empty context where it says none. Raises `Unshaped` for more than one sequence."""
    if order.batch not in (None, 1):
        raise Unshaped(
            f"batch {order.batch}: one sequence is measured; leave the batch out, or write batch: 1"
        )
    given = {*order.shapes, *(key.removesuffix("[0]") for key in order.dims)}
    empty = {} if DEPTH in given else {DEPTH: 0}
    return replace(order, dims={**order.dims, **empty}, batch=None, batch_dim=None)


@dataclass(slots=True)
class CausalSession:
    """One sequence in a model. See `drivers.local.tokens.TokenSession`."""

    torch: Any
    module: Any
    device: str
    wait: Callable[[], object]
    """Returns when the device has finished."""
    last_only: Mapping[str, int] = field(default_factory=dict)
    """What makes the model compute the logits of the last token alone."""
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
        """All at once."""
        for batch in self.batches(tokens, max(1, len(tokens))):
            self.step(batch)

    def fill(self, tokens: Tokens) -> None:
        """Begin with these, to which `rewind` leads back."""
        self._prefix = self._cache = None
        if len(tokens):
            self.decode(tokens)
            self._prefix = self._cache
        self.rewind()

    def rewind(self) -> None:
        self._cache = copy.deepcopy(self._prefix)

    def logits(self) -> Any:
        """Of the last token."""
        return self._logits[0, -1]

    @property
    def caches(self) -> bool:
        """Whether the last step left its keys and values."""
        return self._cache is not None


class CausalModel(TransformersModel):
    _session: CausalSession
    _fed: Mapping[str, Tokens]
    _samples_ns: tuple[int, ...] = ()
    _prompts: PromptTimes | None = None
    _words: FolderWords | None = None

    def _graph_of(self, module: Any) -> ModelGraph:
        size = vocabulary(module.config)
        if size is None:
            raise Unfit("config.json says no vocab_size, which a language model has")
        return ModelGraph(module, module, inputs_of(size), (self.title_of(module),))

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
        return find_runnable(sized(self.order), self.inputs, self.attempt)

    def attempt(self, shapes: Shapes, bound: int) -> Prepared:
        room_for(shapes, 1)
        feeds, pre_ns = make_feeds(sized(self.order), self.inputs, shapes, bound)
        self._fed = feeds
        session = self._session
        was_reset = memory.reset_peak()
        if self._device.startswith("cuda"):
            self._torch.cuda.reset_peak_memory_stats(self._device)
        with torch_errors():
            session.fill(feeds[DEPTH])
            (first,) = session.batches(feeds[GENERATE][:1], 1)
            began = time.perf_counter_ns()
            session.step(first)
            first_ns = time.perf_counter_ns() - began
            if not session.caches:
                raise Unfit(f"{self._folder.architecture} leaves no keys and values: is_decoder is not set")
            session.rewind()
            session.decode(max(feeds[PROMPT], feeds[GENERATE], key=len))  # positions that it must have
            session.rewind()
        if self._graph.module.dtype in (self._torch.bfloat16, self._torch.float16):
            self.tolerance = HALF

        def infer() -> None:
            session.rewind()
            session.step(first)

        self._infer = infer
        return Prepared(
            lambda: TokenLoop(session, feeds[GENERATE]),
            self._answers,
            self._answers,
            feeds,
            shapes,
            bound,
            pre_ns,
            first_ns,
            was_reset,
        )

    def _checked(self) -> tuple[Tokens, Tokens]:
        return self._fed[PROMPT][:CHECKED], self._fed[GENERATE][:STEPS]

    def _answers(self) -> Mapping[str, Any]:
        """Logits after a prompt at once, and after each of some tokens behind it, without the context before them."""
        prompt, tokens = self._checked()
        session, torch = self._session, self._torch
        with torch_errors():
            session.fill(prompt[:0])
            session.decode(prompt)
            after_prompt, after_token = session.logits().clone(), []
            for batch in session.batches(tokens, 1):
                session.step(batch)
                after_token.append(session.logits().clone())
            return as_arrays({"prompt_logits": after_prompt, "token_logits": torch.stack(after_token)})

    def _on_cpu(self, prepared: Prepared, *, wide: bool) -> Mapping[str, Any]:
        """The same tokens in one pass, without a cache."""
        prompt, tokens = self._checked()
        torch = self._torch
        plain = self.reference_graph(wide=wide)
        with torch_errors(), torch.backends.mkldnn.flags(enabled=False):
            ids = torch.tensor([[*prompt.tolist(), *tokens.tolist()]])
            logits = plain.call(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 :]
            return as_arrays({"prompt_logits": logits[0], "token_logits": logits[1:]})

    def time(self, prepared: Prepared, notes: list[str]) -> Generator[ProgressReport, None, MeasureReport]:
        measured = yield from super().time(prepared, notes)
        self._samples_ns = measured.samples_ns
        return measured

    def figures(self) -> dict[str, float]:
        """Tokens per second of prompts and of generation; `d0_…`: without a context, where the order has one."""
        with torch_errors():
            self._prompts, figures = token_figures(self._session, self._fed, self._samples_ns)
            return super().figures() | figures

    def series(self) -> dict[str, tuple[int, ...]]:
        ttft = {} if self._prompts is None else {"ttft": self._prompts.first_token_ns}
        return ttft | {"itl": self._samples_ns}

    def answer_text(self, text: str) -> str:
        module, most = self._graph.module, len(self._fed[GENERATE])
        if self._words is None:
            self._words = FolderWords(self._folder)
        prompt = self._words.prompt(text)
        room_of(prompt, most, getattr(module.config, "max_position_embeddings", None) or 0)
        with torch_errors():
            return answer(self._session, self._words, prompt, most)

    def notes(self, prepared: Prepared) -> list[str]:
        prompts, tokens = bench_words(prepared.shapes)
        notes = super().notes(prepared)
        notes.append(f"an inference is one generated token of llama-bench's {tokens}, with random tokens")
        if self._prompts is not None:
            notes.append(f"prompts: {len(self._prompts.decode_ns)} of {prompts}")
        checked, steps = (len(part) for part in self._checked())
        notes.append(
            f"checked: the logits after {checked} tokens of the prompt at once and {steps} more one by one, against all in "
            "one pass without a cache"
        )
        return notes
