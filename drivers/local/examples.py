"""Gives a loaded model the examples of its order, one by one, and collects its answers. None of this is timed."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from drivers.contract.answers import read_examples, report_answers, text_of
from drivers.contract.base import AnswersReport, DriverError, ProgressReport, Unfit
from drivers.inputs.synthetic import DTYPES, Input
from protocol.formats.examples import (
    MAX_ANSWER_BYTES,
    MIB,
    UNNAMED,
    WIDTHS,
    Value,
    Values,
    text_value,
)
from protocol.formats.phase import Phase
from protocol.formats.shapes import show_shape

if TYPE_CHECKING:
    from drivers.local.model import LocalModel

Array = np.ndarray[Any, Any]


def answer_examples(model: LocalModel) -> Generator[ProgressReport, None, AnswersReport]:
    """The answers to the examples of the model's order, or why there are none. The measurement is valid either way."""
    try:
        examples = read_examples(model.order)
    except Unfit as why:
        return AnswersReport(why=str(why))
    answers: list[Values] = []
    size = 0
    for number, example in enumerate(examples, 1):
        yield ProgressReport(Phase.CHECK, number, len(examples))
        try:
            answer = answer_of(model, example)
        except DriverError as why:
            return AnswersReport(why=f"example {number} of {len(examples)}: {why}"[:2000])
        size += sum(len(value.data) for value in answer.values())
        if size > MAX_ANSWER_BYTES:
            most = f"{MAX_ANSWER_BYTES // MIB} MiB"
            return AnswersReport(why=f"the outputs of {number} of {len(examples)} examples exceed {most}")
        answers.append(answer)
    return report_answers(answers)


def answer_of(model: LocalModel, example: Values) -> Values:
    """The model's answer to one example. Raises a `DriverError`."""
    text = text_of(example)
    if text is not None:
        return {UNNAMED: text_value(model.answer_text(text))}
    feeds = feeds_of(example, model.inputs)
    outputs = model.outputs_of(feeds)
    return {name: value_of(name, output) for name, output in outputs.items()}


def feeds_of(example: Values, inputs: Sequence[Input]) -> dict[str, Array]:
    """Values of each of the model's inputs, by name. Raises `Unfit` for an example that does not fit this model."""
    if UNNAMED in example and len(example) == len(inputs) == 1:
        example = {inputs[0].name: example[UNNAMED]}
    names = [one.name for one in inputs]
    if example.keys() != set(names):
        given = ", ".join(name or "one without a name" for name in example)
        raise Unfit(f"the model's inputs are {', '.join(names)}; the example's are {given}")
    return {one.name: _feed(one, example[one.name]) for one in inputs}


def _feed(one: Input, value: Value) -> Array:
    carrier, odd = DTYPES[one.dtype]
    if odd is not None or value.dtype not in WIDTHS or value.text is not None or carrier == "object":
        raise Unfit(f"input {one.name!r} is {one.dtype}, which examples cannot give")
    array = np.frombuffer(value.data, np.dtype(value.dtype).newbyteorder("<")).reshape(value.shape)
    fixed = zip(one.shape, array.shape, strict=False)
    if len(one.shape) != array.ndim or any(isinstance(want, int) and want != size for want, size in fixed):
        wanted = "×".join(str(size or "any") for size in one.shape)
        raise Unfit(f"input {one.name!r} is {wanted}, and the example gives {show_shape(array.shape)}")
    if not np.can_cast(array.dtype, carrier, "same_kind"):
        raise Unfit(f"input {one.name!r} is {carrier}, and the example gives {value.dtype}")
    return np.require(array, np.dtype(carrier), ["C", "A", "W", "O"])


def value_of(name: str, output: Any) -> Value:
    """An output as a value in an answer. Raises `Unfit` unless it is a tensor of numbers."""
    dtype = str(output.dtype) if isinstance(output, np.ndarray) else type(output).__name__
    if not isinstance(output, np.ndarray) or dtype not in WIDTHS:
        raise Unfit(f"output {name!r} is {dtype}: only tensors of numbers can be kept")
    little = output if sys.byteorder == "little" else output.astype(output.dtype.newbyteorder("<"))
    return Value(dtype, tuple(output.shape), np.ascontiguousarray(little).tobytes())


def shapes_in(feeds: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(feed.shape) for name, feed in feeds.items()}
