"""Feeds, times, checks and reports one order's language model. The session is an argument, so its runtime does not matter.

`LanguageRun` does the work; `LanguageModel` is a `LocalModel` that has a `LanguageRun`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from drivers.contract import memory
from drivers.contract.base import MeasureReport, ProgressReport, Unfit, WorkOrder
from drivers.inputs.feeds import Shapes, find_runnable, make_feeds
from drivers.inputs.synthetic import Input
from drivers.local.greedy import ModelTokenizer, answer, context_for_answer
from drivers.local.model import LocalModel, Prepared
from drivers.local.tokens import (
    DEPTH,
    GENERATE,
    PROMPT,
    PromptTimes,
    TokenLoop,
    Tokens,
    TokenSession,
    bench_words,
    context_for_shapes,
    inputs_of,
    token_figures,
)

CHECKED: Final = 512
"""Tokens of the prompt after which the logits are compared …"""
STEPS: Final = 8
"""… and tokens after the prompt, one by one."""


@dataclass(slots=True)
class LanguageRun:
    """The measurement of one sequence, in the steps of `drivers.local.model.LocalModel`."""

    order: WorkOrder
    """The order, with all sizes."""
    inputs: tuple[Input, ...]
    session: TokenSession
    errors: Callable[[], AbstractContextManager[object]]
    """Turns errors of the runtime into errors of the contract."""
    arrays: Callable[[Any, list[Any]], Mapping[str, Any]]
    """Makes `prompt_logits` and `token_logits` from the session's logits after a prompt and after each following token."""
    open_words: Callable[[], ModelTokenizer]
    """Reads the model's own tokenizer. Raises `Unfit`."""
    trained: object
    """Tokens of the context that the model was trained for, according to its config."""
    fed: Mapping[str, Tokens] = field(default_factory=dict)
    first: Any = None
    """The first token to generate, as a batch of the session."""
    samples_ns: tuple[int, ...] = ()
    """Times of the generated tokens, once they are timed."""
    prompts: PromptTimes | None = None
    words: ModelTokenizer | None = None

    def prepare(self, begin: Callable[[], object], prove: Callable[[], object]) -> Prepared:
        """Prepare with shapes that run. `begin` is called before the model is first used, `prove` after its first token; both may raise
        `DriverError`."""
        return find_runnable(self.order, self.inputs, partial(self._attempt, begin, prove))

    def _attempt(
        self, begin: Callable[[], object], prove: Callable[[], object], shapes: Shapes, bound: int
    ) -> Prepared:
        context_for_shapes(shapes, 1)
        feeds, pre_ns = make_feeds(self.order, self.inputs, shapes, bound)
        self.fed, session = feeds, self.session
        was_reset = memory.reset_peak()
        begin()
        with self.errors():
            session.fill(feeds[DEPTH])
            (self.first,) = session.batches(feeds[GENERATE][:1], 1)
            began = time.perf_counter_ns()
            session.step(self.first)
            first_ns = time.perf_counter_ns() - began
            prove()
            session.rewind()
        return Prepared(
            lambda: TokenLoop(session, feeds[GENERATE]),
            self.answers,
            self.answers,
            feeds,
            shapes,
            bound,
            pre_ns,
            first_ns,
            was_reset,
        )

    def checked(self) -> tuple[Tokens, Tokens]:
        """The prompt, and the tokens after it, whose logits are compared."""
        return self.fed[PROMPT][:CHECKED], self.fed[GENERATE][:STEPS]

    def answers(self) -> Mapping[str, Any]:
        """Logits after a prompt that is decoded at once, and after each of some following tokens, without the context before them."""
        prompt, tokens = self.checked()
        session = self.session
        with self.errors():
            session.fill(prompt[:0])
            session.decode(prompt)
            after_prompt, after_token = session.logits(), list[Any]()
            for batch in session.batches(tokens, 1):
                session.step(batch)
                after_token.append(session.logits())
            return self.arrays(after_prompt, after_token)

    def figures(self) -> dict[str, float]:
        """Tokens per second of prompts and of generation; `d0_…`: without a context, if the order has one."""
        with self.errors():
            self.prompts, figures = token_figures(self.session, self.fed, self.samples_ns)
            return figures

    def series(self) -> dict[str, tuple[int, ...]]:
        ttft = {} if self.prompts is None else {"ttft": self.prompts.first_token_ns}
        return ttft | {"itl": self.samples_ns}

    def answer_text(self, text: str) -> str:
        most = len(self.fed[GENERATE])
        if self.words is None:
            self.words = self.open_words()
        prompt = self.words.prompt(text)
        context_for_answer(prompt, most, self.trained if isinstance(self.trained, int) else 0)
        with self.errors():
            return answer(self.session, self.words, prompt, most)

    def notes(self, shapes: Shapes, reference: str) -> list[str]:
        """Notes for the row. `reference`: how the reference logits were made."""
        prompts, tokens = bench_words(shapes)
        checked, steps = (len(part) for part in self.checked())
        return [
            f"an inference is one generated token of llama-bench's {tokens}, with random tokens",
            *([] if self.prompts is None else [f"prompts: {len(self.prompts.decode_ns)} of {prompts}"]),
            f"checked: the logits after {checked} tokens of the prompt at once and {steps} more one by one, against all in one pass "
            + reference,
        ]


class LanguageModel(LocalModel):
    """The steps that language models of all runtimes share. A runtime's class sets `_run` in `prepare`."""

    _run: LanguageRun

    def attempt(self, shapes: Shapes, bound: int) -> Prepared:
        raise Unfit("a language model is given texts as examples, no tensors")

    def time(self, prepared: Prepared, notes: list[str]) -> Generator[ProgressReport, None, MeasureReport]:
        measured = yield from super().time(prepared, notes)
        self._run.samples_ns = measured.samples_ns
        return measured

    def figures(self) -> dict[str, float]:
        return super().figures() | self._run.figures()

    def series(self) -> dict[str, tuple[int, ...]]:
        return self._run.series()

    def answer_text(self, text: str) -> str:
        return self._run.answer_text(text)


def inputs_by(vocab_size: object) -> tuple[Input, ...]:
    """Random tokens, according to a model's config. Raises `Unfit`."""
    if type(vocab_size) is not int or vocab_size < 1:
        raise Unfit("config.json says no vocab_size, which a language model has")
    return inputs_of(vocab_size)
