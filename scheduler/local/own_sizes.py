"""Which of the sizes given to `bench` apply to which of its models. Blocking: reads the structure of ONNX files, and no weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from protocol.formats.model_files import FormatError
from protocol.formats.onnx import read_graph
from protocol.formats.shapes import dim_keys

KINDS: Final = ("shapes", "dims")
"""Options with sizes, by the name of an input or axis."""
Names = Mapping[str, Collection[str]]


def own_sizes(models: Sequence[str | Path], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The options of each model. A size whose name a model does not have is left out for that model if another model has the name, or
    cannot be read here. A name that no model has stays with all of them, so that it is refused.
    """
    names = [_names(Path(model).expanduser()) for model in models]
    return [
        dict(options) | _kept(own, [*names[:place], *names[place + 1 :]], options)
        for place, own in enumerate(names)
    ]


def _kept(own: Names | None, others: Sequence[Names | None], options: Mapping[str, Any]) -> dict[str, Any]:
    if own is None:
        return {}
    return {
        kind: {
            name: size
            for name, size in options[kind].items()
            if name in own[kind] or not any(other is None or name in other[kind] for other in others)
        }
        for kind in KINDS
        if kind in options
    }


def _names(model: Path) -> Names | None:
    """The names that `shapes` and `dims` of the model may use; None: not an ONNX model that can be read here, such as a URL."""
    try:
        graph = read_graph(next(model.rglob("*.onnx")) if model.is_dir() else model)
    except (FormatError, StopIteration, OSError):
        return None
    return {"shapes": {port.name for port in graph.inputs}, "dims": dim_keys(graph.inputs)}
