"""With how many threads and which batch each task is measured: what tells tasks of one model on one unit apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.values.task import read_task


@dataclass(frozen=True, slots=True)
class Variant:
    """As the signed task says it. None: nothing was said."""

    threads: int | None = None
    batch: int | None = None

    def on(self, unit: str) -> str:
        """`CPU (ONNX) ×2, batch 8`, as in the table of results."""
        threads = "" if self.threads is None else f" ×{self.threads}"
        return unit + threads + ("" if self.batch is None else f", batch {self.batch}")


UNSAID: Final = Variant()


def way_of(body: bytes) -> Variant:
    """Of a task by its canonical bytes; of one that cannot be read nothing is told."""
    try:
        measure = read_task(body).measure
    except RemoteProtocolError:
        return UNSAID
    return Variant(measure.threads, measure.batch)


def ways_of(bodies: Mapping[str, bytes]) -> dict[str, Variant]:
    """The same of several, by id."""
    return {task: way_of(body) for task, body in bodies.items()}
