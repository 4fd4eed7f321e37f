"""One sequence in a language model, with a double of the module that records its inputs and the keys and values they followed."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from drivers.contract.base import Unshaped, WorkOrder
from drivers.local.tokens import TokenLoop, sized, time_prompts
from drivers.transformers.causal import DEFAULTS, CausalSession
from drivers.transformers.units import CPU


class Ids(list[int]):
    """A tensor with one row of tokens."""

    def reshape(self, *shape: int) -> Ids:
        return self

    def split(self, each: int, dim: int) -> list[Ids]:
        return [Ids(self[at : at + each]) for at in range(0, len(self), each)]


class Remembering:
    """A module whose cache is the list of tokens it has seen. Its logits encode their number."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[int], list[int]]] = []
        self.kept: list[object] = []

    def __call__(self, input_ids: Ids, past_key_values: list[int] | None = None, **how: Any) -> Any:
        cache = past_key_values if past_key_values is not None else []
        self.seen.append((list(cache), list(input_ids)))
        self.kept.append((how["use_cache"], how.get("logits_to_keep")))
        cache.extend(input_ids)  # in place, as some caches do
        logits = np.zeros((1, 1, 9))
        logits[0, -1, len(cache) % 9] = 1
        return SimpleNamespace(past_key_values=cache, logits=logits)


def session() -> tuple[CausalSession, Remembering, list[str]]:
    module, waits = Remembering(), list[str]()
    torch = SimpleNamespace(int64="int64", tensor=lambda tokens, dtype, device: Ids(tokens))
    last = {"logits_to_keep": 1}
    return CausalSession(torch, module, "cpu", lambda: waits.append("done"), last), module, waits


def tokens(*values: int) -> Any:
    return np.array(values, np.int32)


def test_tokens_follow_the_context_and_begin_behind_it_again() -> None:
    opened, module, waits = session()
    opened.fill(tokens(7, 8))
    loop, samples = TokenLoop(opened, tokens(1, 2)), array("q", bytes(8 * 3))
    loop.time(samples, 0, 3, 1)
    assert module.seen == [([], [7, 8]), ([7, 8], [1]), ([7, 8, 1], [2]), ([7, 8], [1])]
    assert len(waits) == 4, "a token is there when its device has finished"
    assert set(module.kept) == {(True, 1)}
    assert opened.caches


def test_each_prompt_is_decoded_at_once_behind_the_context() -> None:
    opened, module, _ = session()
    opened.fill(tokens(7))
    module.seen.clear()
    times = time_prompts(opened, tokens(1, 2, 3))
    assert set(map(str, module.seen)) == {"([7], [1, 2, 3])"}
    assert len(times.first_token_ns) == 5
    assert int(opened.logits().argmax()) == 4


def test_without_a_context_a_sequence_begins_with_nothing() -> None:
    opened, module, _ = session()
    opened.fill(tokens())
    opened.decode(tokens(1))
    opened.fill(tokens())
    opened.decode(tokens(2))
    assert module.seen == [([], [1]), ([], [2])]


def test_the_context_is_empty_unless_given_and_the_other_lengths_are_the_orders() -> None:
    assert sized(WorkOrder("m", CPU, dims={"prompt": 3}), DEFAULTS).dims == {"prompt": 3, "depth": 0}
    assert sized(WorkOrder("m", CPU, dims={"depth": 4}, batch=1), DEFAULTS).dims == {"depth": 4}
    assert sized(WorkOrder("m", CPU, shapes={"depth": (4,)}), DEFAULTS).dims == {}
    with pytest.raises(Unshaped, match="one sequence is measured"):
        sized(WorkOrder("m", CPU, batch=2), DEFAULTS)
