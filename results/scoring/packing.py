"""Packs examples for devices and unpacks answers for metrics: between NumPy arrays and the bytes of `protocol.formats.examples`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from protocol.errors import RemoteProtocolError
from protocol.formats.examples import UNNAMED, Value, Values, pack_examples, text_value
from protocol.values.answers import AnswerSet, read_answers
from results.scoring.plugins import Answer, Example
from swarm.base.text import count

if TYPE_CHECKING:
    import numpy as np


def packed(examples: Iterable[Example]) -> bytes:
    """The inputs in the form that devices receive (`protocol.formats.examples`)."""
    return pack_examples(map(_values, examples))


def _values(example: Example) -> Values:
    inputs = example.inputs
    if isinstance(inputs, str):
        return {UNNAMED: text_value(inputs)}
    named = inputs if isinstance(inputs, Mapping) else {UNNAMED: inputs}
    return {name: _value(array) for name, array in named.items()}


def _value(array: np.ndarray[Any, Any]) -> Value:
    little = array.astype(array.dtype.newbyteorder("<"), order="C")
    return Value(array.dtype.newbyteorder("=").name, tuple(array.shape), little.tobytes())


def answers_of(answered: AnswerSet, references: Sequence[JsonValue]) -> list[Answer]:
    """Each answer with its reference. Raises `ValueError` with one line if the form or number of answers is wrong."""
    outputs = outputs_of(answered)
    if len(outputs) != len(references):
        raise ValueError(f"there are {count(len(outputs), 'answer')} for {count(len(references), 'example')}")
    return list(map(Answer, outputs, references))


def outputs_of(answered: AnswerSet) -> list[Mapping[str, np.ndarray[Any, Any]] | str]:
    """The outputs for each example. Raises `ValueError` with one line if the form of the answers is wrong."""
    try:
        return [_outputs(values) for values in read_answers(answered)]
    except RemoteProtocolError as why:
        raise ValueError(why.what) from None


def _outputs(values: Values) -> Mapping[str, np.ndarray[Any, Any]] | str:
    import numpy as np

    text = values[UNNAMED].text if UNNAMED in values else None
    if text is not None:
        return text
    return {
        name: np.frombuffer(value.data, np.dtype(value.dtype).newbyteorder("<")).reshape(value.shape)
        for name, value in values.items()
        if value.text is None
    }
