"""How rows and related values are written: the base of JSON values, timestamps, and short words for tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict

from protocol.errors import RemoteProtocolError
from protocol.values.task import TaskReader
from swarm.base.units import show_ms


class JsonModel(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, defer_build=True
    )


def utc(instant: float | None, timespec: str = "seconds") -> str | None:
    """Wall-clock seconds since 1970, as ISO 8601 text for programs."""
    return None if instant is None else datetime.fromtimestamp(instant, UTC).isoformat(timespec=timespec)


def instant(text: str) -> float:
    """The inverse of `utc`: wall-clock seconds. Raises ValueError for other text."""
    return datetime.fromisoformat(text).timestamp()


def without_names(text: str) -> tuple[str, ...]:
    """`Row.shapes` or `Row.dtypes` without the inputs' names, which differ in other formats of a model."""
    return tuple(sorted(part.rpartition(" ")[2] for part in text.split("; ")))


def short_shapes(shapes: str) -> str:
    """`Row.shapes` for a table: `1×3×48×320` for one input, `ids 1×128 +2` for several."""
    inputs = [part.rpartition(" ") for part in shapes.split("; ") if part]
    if not inputs:
        return ""
    name, _, sizes = inputs[0]
    first = sizes.replace("x", "×")
    return first if len(inputs) == 1 else f"{name} {first} +{len(inputs) - 1}"


def median_text(median_ms: float | None, low_ms: float | None, high_ms: float | None) -> str:
    """`12.5 ms ±2 %`: a median with half of its 95 % interval, if known; empty without a median."""
    if median_ms is None:
        return ""
    if not median_ms or low_ms is None or high_ms is None:
        return show_ms(median_ms)
    return f"{show_ms(median_ms)} ±{50 * (high_ms - low_ms) / median_ms:.2g} %"


def against_words(model: str, unit: str, own_model: str, own_unit: str) -> str:
    """What a model is compared with, naming only what differs: `yolo fp32`, `CPU (ONNX)` or `yolo fp32 on CPU (ONNX)`."""
    if unit == own_unit:
        return model
    return unit if model == own_model else f"{model} on {unit}"


@dataclass(frozen=True, slots=True)
class Configuration:
    """The threads and batch that a task is measured with, which tell apart tasks of one model on one unit. None: the device's own
    choice.
    """

    threads: int | None = None
    batch: int | None = None

    def on(self, unit: str) -> str:
        """`CPU (ONNX) ×2, batch 8`, as in the table of results."""
        threads = "" if self.threads is None else f" ×{self.threads}"
        return unit + threads + ("" if self.batch is None else f", batch {self.batch}")


def configurations_of(bodies: Mapping[str, bytes]) -> dict[str, Configuration]:
    """Configurations of tasks, given their ids and canonical bytes; an unreadable task gets an empty one."""
    reader, found = TaskReader(), dict[str, Configuration]()
    for task, body in bodies.items():
        try:
            measure = reader.read(task, body).measure
        except RemoteProtocolError:
            found[task] = Configuration()
        else:
            found[task] = Configuration(measure.threads, measure.batch)
    return found
