"""The examples of an order, read, and the answers to them, reported: for every driver, whatever makes the answers."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path

from drivers.contract.base import AnswersReport, Unfit, WorkOrder
from protocol.formats.examples import MAX_ANSWER_BYTES, MIB, UNNAMED, Values, pack_examples, unpack_examples


def read_examples(order: WorkOrder) -> tuple[Values, ...]:
    """Raises `Unfit`."""
    try:
        return unpack_examples(Path(order.examples).read_bytes())
    except (OSError, ValueError) as why:
        raise Unfit(f"its examples cannot be read: {why}") from None


def text_of(example: Values) -> str | None:
    """The prompt; None: it is of tensors."""
    return example[UNNAMED].text if UNNAMED in example else None


def report_answers(answers: Iterable[Values]) -> AnswersReport:
    """All answers, or that no record can hold them."""
    packed = pack_examples(answers)
    if len(packed) > MAX_ANSWER_BYTES:
        return AnswersReport(
            why=f"the answers with their names come to more than {MAX_ANSWER_BYTES // MIB} MiB"
        )
    return AnswersReport(b64encode(packed).decode())
