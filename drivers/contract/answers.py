"""Reads the examples of an order and reports the answers to them, for every driver, whatever makes the answers."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path

from drivers.contract.base import AnswersReport, Unfit, WorkOrder
from protocol.formats.examples import MAX_ANSWER_BYTES, MIB, UNNAMED, Values, pack_examples, unpack_examples


def read_examples(order: WorkOrder) -> tuple[Values, ...]:
    """The examples of an order. Raises `Unfit`."""
    try:
        return unpack_examples(Path(order.examples).read_bytes())
    except (OSError, ValueError) as why:
        raise Unfit(f"its examples cannot be read: {why}") from None


def text_of(example: Values) -> str | None:
    """The prompt of an example; None: the example consists of tensors."""
    return example[UNNAMED].text if UNNAMED in example else None


def report_answers(answers: Iterable[Values]) -> AnswersReport:
    """All answers in one report, or the reason if they are too large for a record."""
    packed = pack_examples(answers)
    if len(packed) > MAX_ANSWER_BYTES:
        return AnswersReport(why=f"the answers with their names exceed {MAX_ANSWER_BYTES // MIB} MiB")
    return AnswersReport(b64encode(packed).decode())
