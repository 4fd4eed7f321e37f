"""The timed tests of a language model, in llama-bench's terms: `tg128` generates tokens one by one, `pp512` decodes a prompt, each after a
context of `depth` tokens (`@ d4096`). Pure: the clock and the session are arguments."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final, Protocol

import numpy as np

from drivers.contract.base import Unshaped, WorkOrder
from drivers.inputs.synthetic import Input
from drivers.measure.timing import timer_overhead_ns

PROMPT, GENERATE, DEPTH = "prompt", "generate", "depth"
DEFAULTS: Final[Mapping[str, int]] = {PROMPT: 512, GENERATE: 128, DEPTH: 0}
"""Numbers of tokens, as in llama-bench."""
PROMPTS: Final = 5
"""How many times a prompt is decoded …"""
PROMPTS_NS: Final = 20_000_000_000
"""… but fewer if this would take longer; at least once."""

Tokens = np.ndarray[Any, Any]


class TokenSession(Protocol):
    """One sequence in a model, as its runtime keeps it; see `drivers.llamacpp.session.Session`."""

    def batches(self, tokens: Tokens, each: int) -> list[Any]: ...
    def step(self, batch: Any) -> None: ...
    def decode(self, tokens: Tokens) -> None: ...
    def fill(self, tokens: Tokens) -> None: ...
    def rewind(self) -> None: ...
    def logits(self) -> Tokens: ...


def sized(order: WorkOrder, defaults: Mapping[str, int] = DEFAULTS) -> WorkOrder:
    """The order, with default sizes where it has none. Raises `Unshaped`."""
    if order.batch not in (None, 1):
        raise Unshaped(
            f"batch {order.batch}: one sequence is measured; leave the batch out, or write batch: 1"
        )
    given = {*order.shapes, *(key.removesuffix("[0]") for key in order.dims)}
    missing = {name: size for name, size in defaults.items() if name not in given}
    return replace(order, dims={**order.dims, **missing}, batch=None, batch_dim=None)


def inputs_of(vocabulary: int) -> tuple[Input, ...]:
    """Inputs of random tokens from a model's vocabulary."""
    return tuple(Input(name, "int32", (name,), vocabulary) for name in DEFAULTS)


def context_for_shapes(shapes: Mapping[str, tuple[int, ...]], least: int) -> int:
    """Tokens of the context that the shapes need. Raises `Unshaped`."""
    prompt, generate, depth = (shapes[name][0] for name in DEFAULTS)
    for name, size in ((PROMPT, prompt), (GENERATE, generate)):
        if size < 1:
            raise Unshaped(f"{name}: 0 tokens; give at least 1, such as dims: {{{name}: {DEFAULTS[name]}}}")
    room = depth + max(prompt, generate, least)
    if room >= 2**31:
        raise Unshaped(f"a context of {room} tokens is more than llama.cpp can count")
    return room


class TokenLoop:
    """One inference is one generated token. After `generate` tokens the context is cut back to `depth` tokens, which is not timed."""

    def __init__(
        self, session: TokenSession, tokens: Tokens, clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._session, self._clock = session, clock
        self._tokens = np.ascontiguousarray(tokens)
        self._batches = session.batches(self._tokens, 1)
        self._next = len(self._batches)

    def time(self, samples: array[int], start: int, stop: int, per_sample: int) -> None:
        """See `drivers.measure.timing.TimedLoop`."""
        clock, step, batches, end = self._clock, self._session.step, self._batches, len(self._batches)
        for index in range(start, stop):
            spent, left = 0, per_sample
            while left:
                if self._next == end:
                    self._session.rewind()
                    self._next = 0
                first, self._next = self._next, min(end, self._next + left)
                began = clock()
                for batch in batches[first : self._next]:
                    step(batch)
                spent += clock() - began
                left -= self._next - first
            samples[index] = round(spent / per_sample)

    def overhead_ns(self) -> int:
        return timer_overhead_ns()


@dataclass(frozen=True, slots=True)
class PromptTimes:
    """Nanoseconds of each prompt."""

    decode_ns: tuple[int, ...]
    """Decoding all tokens of the prompt: llama-bench's pp."""
    first_token_ns: tuple[int, ...]
    """… and choosing the most likely token after them."""

    def tokens_per_s(self, prompt: int) -> float:
        """The mean of the prompts' rates, as in llama-bench."""
        return sum(prompt * 1e9 / taken for taken in self.decode_ns) / len(self.decode_ns)


def time_prompts(
    session: TokenSession, prompt: Tokens, clock: Callable[[], int] = time.perf_counter_ns
) -> PromptTimes:
    """Decode the prompt after the session's prefix, several times; one more decoding before them warms up."""
    session.rewind()
    session.decode(prompt)
    decoded, chosen = list[int](), list[int]()
    while len(decoded) < PROMPTS and (not decoded or sum(decoded) + decoded[-1] <= PROMPTS_NS):
        session.rewind()
        began = clock()
        session.decode(prompt)
        decoded.append(clock() - began)
        int(session.logits().argmax())
        chosen.append(clock() - began)
    return PromptTimes(tuple(decoded), tuple(chosen))


def time_tokens(session: TokenSession, tokens: Tokens) -> float:
    """Tokens generated per second after the session's prefix, over all of `tokens`; one more token before them warms up."""
    loop, warm = TokenLoop(session, tokens[:1]), array("q", [0])
    loop.time(warm, 0, 1, 1)
    times = array("q", bytes(8 * len(tokens)))
    TokenLoop(session, tokens).time(times, 0, len(tokens), 1)
    return len(times) * 1e9 / sum(times)


def token_figures(
    session: TokenSession, fed: Mapping[str, Tokens], samples_ns: Sequence[int]
) -> tuple[PromptTimes, dict[str, float]]:
    """Tokens per second of prompts and of generation, after the session's prefix; `d0_…`: without the prefix, if there is one.
    `samples_ns`: times of the generated tokens; empty: they were not timed."""
    prompt = fed[PROMPT]
    prompts = time_prompts(session, prompt)
    figures = {"prompt_tokens_per_s": prompts.tokens_per_s(len(prompt))}
    if samples_ns:
        figures["output_tokens_per_s"] = len(samples_ns) * 1e9 / sum(samples_ns)
    if len(fed[DEPTH]):
        session.fill(fed[DEPTH][:0])
        empty = time_prompts(session, prompt)
        figures |= {
            "d0_output_tokens_per_s": time_tokens(session, fed[GENERATE]),
            "d0_prompt_tokens_per_s": empty.tokens_per_s(len(prompt)),
            "d0_ttft_ms_p50": median(empty.first_token_ns) / 1e6,
        }
    return prompts, figures


def bench_words(shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, str]:
    """llama-bench's names of both tests: `pp512 @ d4096`, `tg128 @ d4096`."""
    prompt, generate, depth = (shapes[name][0] for name in DEFAULTS)
    behind = f" @ d{depth}" if depth else ""
    return f"pp{prompt}{behind}", f"tg{generate}{behind}"
