"""Prompts that a language model answers, with a session that only records its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from drivers.contract.base import Unfit
from drivers.local.greedy import answer, context_for_answer
from drivers.local.tokens import Tokens


class Counting:
    """A session in which the most likely token is always the last one plus one."""

    def __init__(self) -> None:
        self.seen: list[int] = [99]  # left over from the timed part

    def batches(self, tokens: Tokens, each: int) -> list[Any]:
        raise NotImplementedError

    def step(self, batch: Any) -> None:
        raise NotImplementedError

    def fill(self, tokens: Tokens) -> None:
        self.seen = tokens.tolist()

    def decode(self, tokens: Tokens) -> None:
        assert len(self.seen) + len(tokens) <= 6, "more than there is room for"
        self.seen += tokens.tolist()

    def rewind(self) -> None:
        raise NotImplementedError

    def logits(self) -> Tokens:
        return np.eye(100, dtype=np.float32)[self.seen[-1] + 1]


class Numbers:
    """A tokenizer of numbers, one of which ends an answer."""

    def __init__(self, end: int) -> None:
        self.end = end

    def prompt(self, text: str) -> Tokens:
        return np.array([int(word) for word in text.split()], np.int32)

    def ends(self, token: int) -> bool:
        return token == self.end

    def text(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))


@pytest.mark.parametrize(
    ("end", "most", "text"), [(8, 9, "4 5 6 7"), (4, 9, ""), (50, 3, "4 5 6"), (50, 1, "4"), (7, 3, "4 5 6")]
)
def test_an_answer_goes_on_to_its_end_or_as_far_as_it_may(end: int, most: int, text: str) -> None:
    session, words = Counting(), Numbers(end)
    prompt = words.prompt("7 3")
    context_for_answer(prompt, most, 0)
    assert answer(session, words, prompt, most) == text
    assert session.seen[:2] == [7, 3], "nothing of what was timed is before the prompt"
    assert len(session.seen) < len(prompt) + most, "the last token is not decoded"


def test_what_does_not_fit_the_context_is_said() -> None:
    prompt = np.arange(5, dtype=np.int32)
    assert context_for_answer(prompt, 3, 8) == context_for_answer(prompt, 3, 0) == 8
    with pytest.raises(Unfit, match="prompt of 5 tokens and an answer of up to 3 are more than the 7 tokens"):
        context_for_answer(prompt, 3, 7)
    with pytest.raises(Unfit, match="no tokens"):
        context_for_answer(prompt[:0], 3, 7)
