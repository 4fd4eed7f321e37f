"""The task `outputs`: inputs without labels, to measure how far outputs drift between units, devices and formats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from results.scoring.arrays import read_arrays
from results.scoring.classification import samples
from results.scoring.options import only
from results.scoring.plugins import Example
from results.scoring.tensors import tensors_to_json
from swarm.base.text import safe_text

if TYPE_CHECKING:
    import numpy as np

EXPECTED: Final = "expected:"
FORM: Final = "numpy.savez(FILE, x=inputs, **{'expected:y': outputs})"


class Outputs:
    """Each example is one sample; its reference is its expected outputs, if the file has them."""

    name = "outputs"
    metrics = ("drift",)

    def examples(self, data: Path | None, options: Mapping[str, Any]) -> Iterable[Example]:
        only(options, ())
        if data is None:
            raise ValueError(f"outputs needs data: an .npz file of inputs, {FORM}")
        return _examples(read_arrays(data), safe_text(data.name, 80))


def _examples(arrays: Mapping[str, np.ndarray[Any, Any]], shown: str) -> Iterator[Example]:
    inputs = samples({name: array for name, array in arrays.items() if not name.startswith(EXPECTED)}, shown)
    expected = {
        name.removeprefix(EXPECTED): array for name, array in arrays.items() if name.startswith(EXPECTED)
    }
    for name, array in expected.items():
        if not name or array.ndim == 0 or len(array) != len(inputs):
            there_are = 0 if array.ndim == 0 else len(array)
            raise ValueError(
                f"array '{EXPECTED}{safe_text(name, 60)}' of {shown} has {there_are} samples for {len(inputs)} inputs: {FORM}"
            )
    for at, sample in enumerate(inputs):
        reference = tensors_to_json({name: array[at : at + 1] for name, array in expected.items()})
        yield Example(sample, reference or None)
