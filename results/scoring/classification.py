"""The task `classification`: labelled samples from an .npz file, or a folder of images with one subfolder per class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from results.scoring.arrays import read_arrays
from results.scoring.images import labelled_images
from results.scoring.plugins import Example
from swarm.base.text import safe_text

if TYPE_CHECKING:
    import numpy as np

LABELS: Final = "labels"
FORM: Final = "numpy.savez(FILE, x=inputs, labels=classes), with N samples in each, and labels from 0"


class Classification:
    """Each example is one sample with its label, the index of a class."""

    name = "classification"
    metrics = ("accuracy",)

    def examples(self, data: Path | None, options: Mapping[str, Any]) -> Iterable[Example]:
        if data is None:
            raise ValueError("classification needs data: an .npz file with labels, or a folder of images")
        if data.is_dir():
            return labelled_images(data, options)
        if options:
            raise ValueError("classification takes no options for an .npz file: they say how images are read")
        return labelled(read_arrays(data), safe_text(data.name, 80))


def labelled(arrays: Mapping[str, np.ndarray[Any, Any]], shown: str) -> Iterator[Example]:
    """The samples, each with its label. Raises `ValueError`."""
    if LABELS not in arrays:
        raise ValueError(f"{shown} has no array 'labels': {FORM}")
    labels = arrays[LABELS]
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(
            f"the labels of {shown} are {list(labels.shape)} of {labels.dtype}: they have to be [N] whole numbers"
        )
    if labels.size and int(labels.min()) < 0:
        raise ValueError(f"{shown} has a label {labels.min()}: labels are indices of classes, from 0")
    inputs = {name: array for name, array in arrays.items() if name != LABELS}
    for sample, label in zip(samples(inputs, shown, len(labels)), labels, strict=True):
        yield Example(sample, int(label))


def samples(
    inputs: Mapping[str, np.ndarray[Any, Any]], shown: str, number: int | None = None
) -> list[np.ndarray[Any, Any] | dict[str, np.ndarray[Any, Any]]]:
    """Rows of the inputs, each with a batch axis of 1. A single input has no name, because each format of a model names it differently.
    `number`: the required number of rows.
    """
    import numpy as np

    if not inputs:
        raise ValueError(f"{shown} has no array for the model's input: {FORM}")
    for name, array in inputs.items():
        if array.ndim == 0 or not len(array):
            raise ValueError(
                f"array {safe_text(name, 80)!r} of {shown} has no samples: its first axis counts them"
            )
        number = len(array) if number is None else number
        if len(array) != number:
            raise ValueError(
                f"array {safe_text(name, 80)!r} of {shown} has {len(array)} samples, where others have {number}"
            )
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise ValueError(f"array {safe_text(name, 80)!r} of {shown} has NaN in it")
    if len(inputs) == 1:
        (only,) = inputs.values()
        return [only[at : at + 1] for at in range(len(only))]
    return [{name: array[at : at + 1] for name, array in inputs.items()} for at in range(number or 0)]
