"""One order's model in llama.cpp: loaded, run and checked. Imported late, in the child or its zygote."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from drivers.contract import memory
from drivers.contract.base import MeasureReport, ProgressReport, Unfit, WorkOrder
from drivers.contract.formats import broken_is_unfit
from drivers.contract.hardware import threads_notes
from drivers.inputs.feeds import Shapes, find_runnable, make_feeds, shapes_of
from drivers.llamacpp.library import LOG, ggml, runtime, version
from drivers.llamacpp.session import LlamaPlace, Session
from drivers.llamacpp.units import CPU, check_unit, first_gpu, show_only, verify_offload
from drivers.local.greedy import answer, context_for_answer
from drivers.local.model import ExecutionPlace, LocalModel, Prepared
from drivers.local.tokens import (
    DEPTH,
    GENERATE,
    PROMPT,
    PromptTimes,
    TokenLoop,
    bench_words,
    context_for_shapes,
    inputs_of,
    sized,
    token_figures,
)
from protocol.formats.model_files import ModelFormat, read_format

CHECKED: Final = 16
"""Tokens of the prompt whose logits are compared. Few, because the reference decodes them one by one, on one core."""
TOLERANCE: Final = 2e-2
"""Relative to the value; weights, activations and the cache are less precise than float32."""


class LlamaModel(LocalModel):
    tolerance = TOLERANCE

    def __init__(self, order: WorkOrder) -> None:
        check_unit(order.unit)
        with broken_is_unfit():
            kind = read_format(Path(order.model))
        if kind is not ModelFormat.GGUF:
            raise Unfit(
                f"it is not a GGUF model but {kind}; convert it with llama.cpp's convert_hf_to_gguf.py"
            )
        self._gpu = None
        if order.unit != CPU:
            show_only(order.gpu, os.environ)
        self._lib = lib = runtime()
        if order.unit != CPU:
            self._gpu = first_gpu(lib, ggml(), order.gpu)
        super().__init__(order, version(lib))
        self._sized = sized(order)
        self._shapes = shapes_of(self._sized, inputs_of(1))
        self._room = context_for_shapes(self._shapes, CHECKED + 1)
        self._measured: MeasureReport | None = None
        self._prompts: PromptTimes | None = None
        self._said: tuple[str, ...] = ()

    def load(self) -> int:
        placement = LlamaPlace(self.threads, None if self._gpu is None else self._gpu.handle)
        began = time.perf_counter_ns()
        self._session = Session(self._lib, LOG, self.order.model, placement)
        self._said = tuple(LOG.lines)
        self._session.open(self._room)
        took_ns = time.perf_counter_ns() - began
        self.inputs = inputs_of(self._session.vocabulary)
        self.threads = self._session.threads
        return took_ns

    def verify(self) -> None:
        if self._gpu is not None:
            verify_offload(self.order.unit, self._said)

    def prepare(self) -> Prepared:
        return find_runnable(self._sized, self.inputs, self.attempt)

    def attempt(self, shapes: Shapes, bound: int) -> Prepared:
        feeds, pre_ns = make_feeds(self._sized, self.inputs, shapes, bound)
        session = self._session
        self._fed = feeds
        session.fill(feeds[DEPTH])
        was_reset = memory.reset_peak()
        (first,) = session.batches(feeds[GENERATE][:1], 1)
        began = time.perf_counter_ns()
        session.step(first)
        first_ns = time.perf_counter_ns() - began

        def outputs() -> Mapping[str, Any]:
            return self._logits(session, at_once=True)

        return Prepared(
            lambda: TokenLoop(session, feeds[GENERATE]),
            outputs,
            outputs,
            feeds,
            shapes,
            bound,
            pre_ns,
            first_ns,
            was_reset,
        )

    def _logits(self, session: Session, *, at_once: bool) -> Mapping[str, Any]:
        """Logits after the first tokens of the prompt, and after one generated token, without the context before them."""
        prompt = self._fed[PROMPT][:CHECKED]
        session.clear()
        for piece in [prompt] if at_once else np.split(prompt, len(prompt)):
            session.decode(piece)
        after_prompt = session.logits().copy()
        session.decode(self._fed[GENERATE][:1])
        return {"prompt_logits": after_prompt, "token_logits": session.logits().copy()}

    def time(self, prepared: Prepared, notes: list[str]) -> Generator[ProgressReport, None, MeasureReport]:
        self._measured = yield from super().time(prepared, notes)
        return self._measured

    def figures(self) -> dict[str, float]:
        """Tokens per second of prompts and of generation; `d0_…`: without a context, if the order has one."""
        samples_ns = () if self._measured is None else self._measured.samples_ns
        self._prompts, figures = token_figures(self._session, self._fed, samples_ns)
        return figures

    def series(self) -> dict[str, tuple[int, ...]]:
        """Series of times; `itl` only if each sample is one token."""
        measured, series = self._measured, dict[str, tuple[int, ...]]()
        if self._prompts is not None:
            series["ttft"] = self._prompts.first_token_ns
        if measured is not None and measured.per_sample == 1:
            series["itl"] = measured.samples_ns
        return series

    def answer_text(self, text: str) -> str:
        session, most = self._session, len(self._fed[GENERATE])
        words = session.words()
        prompt = words.prompt(text)
        session.open(context_for_answer(prompt, most, session.trained_length))
        return answer(session, words, prompt, most)

    def ran_on(self, prepared: Prepared) -> ExecutionPlace:
        return ExecutionPlace(self.order.unit, ("cpu" if self._gpu is None else self._gpu.shown,))

    def notes(self, prepared: Prepared) -> list[str]:
        prompts, tokens = bench_words(prepared.shapes)
        notes = [
            *threads_notes(self.order.threads),
            f"model: {self._session.description}",
            f"an inference is one generated token of llama-bench's {tokens}, with random tokens",
        ]
        if self._prompts is not None:
            notes.append(f"prompts: {len(self._prompts.decode_ns)} of {prompts}")
        if self._room > self._session.trained_length:
            notes.append(
                f"the context is longer than the {self._session.trained_length} tokens that the model was trained for"
            )
        compared = len(prepared.feeds[PROMPT][:CHECKED])
        notes.append(
            f"checked: the logits after {compared} tokens of the prompt at once and one more, against the same tokens "
            "one by one on one thread of the processor, without rearranged weights and flash attention"
        )
        return notes

    def reference(self, prepared: Prepared) -> Mapping[str, Any]:
        plain = Session(self._lib, LOG, self.order.model, LlamaPlace(1, plain=True))
        try:
            plain.open(CHECKED + 1)
            return self._logits(plain, at_once=False)
        finally:
            plain.close()


def try_unit(order: WorkOrder) -> tuple[str, str]:
    """Generate a token on the order's unit; returns the runtime and the device that ran. Raises `DriverError`."""
    model = LlamaModel(order)
    model.load()
    model.verify()
    prepared = model.prepare()
    if not np.isfinite(prepared.outputs()["token_logits"]).all():
        raise Unfit(f"{order.unit} computes values that are not finite numbers")
    return model.runtime, model.ran_on(prepared).providers[0]
