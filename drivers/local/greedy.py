"""A language model's answer to a prompt: the most likely token, again and again, until the answer ends. Pure: the session is an
argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from drivers.contract.base import Unfit
from drivers.local.tokens import GENERATE, Tokens, TokenSession


class ModelTokenizer(Protocol):
    """A model's own tokenizer."""

    def prompt(self, text: str) -> Tokens:
        """The prompt's tokens, in the model's chat template if it has one. Raises `Unfit`."""
        ...

    def ends(self, token: int) -> bool:
        """Whether this token ends an answer."""
        ...

    def text(self, tokens: Sequence[int]) -> str: ...


def context_for_answer(prompt: Tokens, most: int, trained: int) -> int:
    """Tokens of context that the prompt and an answer of up to `most` tokens need. `trained`: the context that the model was trained for;
    0: unknown. Raises `Unfit`."""
    if not len(prompt):
        raise Unfit("the prompt has no tokens")
    room = len(prompt) + most
    if 0 < trained < room:
        raise Unfit(
            f"its prompt of {len(prompt)} tokens and an answer of up to {most} are more than the {trained} tokens of the model's "
            f"context; give a smaller {GENERATE}, or shorter texts"
        )
    return room


def answer(session: TokenSession, words: ModelTokenizer, prompt: Tokens, most: int) -> str:
    """The text of up to `most` tokens after the prompt."""
    session.fill(prompt[:0])
    session.decode(prompt)
    made: list[int] = []
    while not words.ends(token := int(session.logits().argmax())):
        made.append(token)
        if len(made) == most:
            break
        session.decode(np.array([token], np.int32))
    return words.text(made)
