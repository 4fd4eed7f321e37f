"""A model's answers to the examples of its task, in the form that its record contains."""

from __future__ import annotations

import hashlib
import zlib
from typing import Annotated

from pydantic import Field

from protocol.errors import RemoteProtocolError
from protocol.formats.examples import MAX_ANSWER_BYTES, Value, unpack_examples
from protocol.wire.base import Detail, Message, Sha256
from protocol.wire.codec import inflate


class AnswerSet(Message):
    """The answers to all examples of a task, in their order, or why there are none."""

    answers: Annotated[bytes, Field(max_length=MAX_ANSWER_BYTES + MAX_ANSWER_BYTES // 100)] = b""
    """`protocol.formats.examples`, deflated by zlib; empty if there are none."""
    sha256: Sha256 | None = None
    """Of the answers before compression; identical for runs with identical answers."""
    why: Detail = ""
    """Why there are no answers."""


def answer_set(answers: bytes) -> AnswerSet:
    """The answers, given as bytes of `protocol.formats.examples`, in the form for a record."""
    return AnswerSet(answers=zlib.compress(answers, 6), sha256=hashlib.sha256(answers).hexdigest())


def read_answers(answered: AnswerSet) -> tuple[dict[str, Value], ...]:
    """The outputs for each example. Raises `RemoteProtocolError` if they are not in the protocol's form."""
    answers = inflate(answered.answers, MAX_ANSWER_BYTES, "answers")
    if hashlib.sha256(answers).hexdigest() != answered.sha256:
        raise RemoteProtocolError("bad answers: they have another sha256 than the record says")
    try:
        return unpack_examples(answers, MAX_ANSWER_BYTES)
    except ValueError as why:
        raise RemoteProtocolError(f"bad answers: {why}") from None
