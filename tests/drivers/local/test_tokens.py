"""What is timed in a language model, with a session that only counts and moves the clock."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest

from drivers.contract.base import Unshaped, WorkOrder
from drivers.inputs.feeds import shapes_of
from drivers.local.tokens import (
    PROMPTS,
    PROMPTS_NS,
    TokenLoop,
    bench_words,
    context_for_shapes,
    inputs_of,
    sized,
    time_prompts,
    time_tokens,
)


class Counting:
    """A session in which each token takes `token_ns`, and each rewind a second."""

    def __init__(self, token_ns: int = 10) -> None:
        self.now, self.token_ns = 0, token_ns
        self.seen: list[object] = []

    def clock(self) -> int:
        return self.now

    def batches(self, tokens: Any, each: int) -> list[Any]:
        return [tokens[at : at + each] for at in range(0, len(tokens), each)]

    def step(self, batch: Any) -> None:
        self.seen += list(batch)
        self.now += self.token_ns * len(batch)

    def decode(self, tokens: Any) -> None:
        self.step(tokens)

    def rewind(self) -> None:
        self.seen.append("rewind")
        self.now += 1_000_000_000

    def logits(self) -> Any:
        self.now += 3
        return np.array([0.0, 1.0])


def shapes(**dims: int) -> Any:
    return shapes_of(sized(WorkOrder("m.gguf", "u", dims=dims)), inputs_of(8))


def test_sizes_are_llama_benchs_unless_the_order_has_them() -> None:
    assert shapes() == {"prompt": (512,), "generate": (128,), "depth": (0,)}
    assert shapes(depth=4096, **{"prompt[0]": 64}) == {"prompt": (64,), "generate": (128,), "depth": (4096,)}
    own = sized(WorkOrder("m.gguf", "u", shapes={"prompt": (7,)}, batch=1))
    assert shapes_of(own, inputs_of(8))["prompt"] == (7,)
    assert bench_words(shapes()) == ("pp512", "tg128")
    assert bench_words(shapes(depth=4096, prompt=8)) == ("pp8 @ d4096", "tg128 @ d4096")


def test_what_cannot_be_measured_is_refused_with_the_right_form() -> None:
    with pytest.raises(Unshaped, match="write batch: 1"):
        sized(WorkOrder("m.gguf", "u", batch=4))
    with pytest.raises(Unshaped, match=r"generate: 0 tokens.*dims: \{generate: 128\}"):
        context_for_shapes(shapes(generate=0), 17)
    with pytest.raises(Unshaped, match=r"more than llama.cpp can count"):
        context_for_shapes(shapes(depth=2**31), 17)
    assert context_for_shapes(shapes(depth=1000, prompt=4, generate=5), 17) == 1017
    assert context_for_shapes(shapes(depth=1000), 17) == 1512


def test_an_inference_is_one_token_and_going_back_is_not_timed() -> None:
    session = Counting()
    loop = TokenLoop(session, np.arange(3, dtype=np.int32), session.clock)
    samples = array("q", bytes(8 * 5))
    loop.time(samples, 0, 5, 1)
    assert list(samples) == [10] * 5
    assert session.seen == ["rewind", 0, 1, 2, "rewind", 0, 1]
    loop.time(samples, 0, 1, 4)  # a sample of several tokens may rewind in between
    assert samples[0] == 10
    assert session.seen[7:] == [2, "rewind", 0, 1, 2]


def test_prompts_begin_behind_the_context_and_the_first_token_is_chosen_after_them() -> None:
    session = Counting()
    times = time_prompts(session, np.arange(4, dtype=np.int32), session.clock)
    assert times.decode_ns == (40,) * PROMPTS
    assert times.first_token_ns == (43,) * PROMPTS
    assert times.tokens_per_s(4) == pytest.approx(1e8)
    assert session.seen.count("rewind") == PROMPTS + 1
    slow = Counting(token_ns=PROMPTS_NS // 5)
    assert len(time_prompts(slow, np.arange(2, dtype=np.int32), slow.clock).decode_ns) == 2
    slower = Counting(token_ns=PROMPTS_NS)
    assert len(time_prompts(slower, np.arange(2, dtype=np.int32), slower.clock).decode_ns) == 1


def test_tokens_per_second_are_over_all_of_them() -> None:
    session = Counting()
    assert time_tokens(session, np.arange(6, dtype=np.int32)) > 0
    assert [one for one in session.seen if one != "rewind"] == [0, 0, 1, 2, 3, 4, 5]
