"""What a model made of the examples that came with its task, as it stands in the record."""

from __future__ import annotations

import zlib
from typing import Annotated

from pydantic import Field

from protocol.errors import RemoteProtocolError
from protocol.formats.examples import MAX_ANSWER_BYTES, Value, unpack_examples
from protocol.wire.base import Detail, Message
from protocol.wire.codec import inflate


class AnswerSet(Message):
    """The answers to all examples of a task, in their order, or why there are none."""

    answers: Annotated[bytes, Field(max_length=MAX_ANSWER_BYTES + MAX_ANSWER_BYTES // 100)] = b""
    """`protocol.formats.examples`, deflated by zlib; empty: there are none."""
    why: Detail = ""
    """Why there are none."""


def pack_answers(answers: bytes) -> bytes:
    """Bytes of `protocol.formats.examples`, as a record has them."""
    return zlib.compress(answers, 6)


def read_answers(answered: AnswerSet) -> tuple[dict[str, Value], ...]:
    """The outputs for each example. Raises `RemoteProtocolError` for what is not in the protocol's form."""
    try:
        return unpack_examples(inflate(answered.answers, MAX_ANSWER_BYTES, "answers"), MAX_ANSWER_BYTES)
    except ValueError as why:
        raise RemoteProtocolError(f"bad answers: {why}") from None
