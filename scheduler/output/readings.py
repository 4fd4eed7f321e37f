"""Sensor readings of devices that run tasks of this home: for programs, and as a table for `top`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from rich.table import Table
from rich.text import Text

from protocol.values.reading import GpuReading, SensorValues
from scheduler.output.schemas import Instant, shown_as
from scheduler.output.terminal import name, number, table
from scheduler.store.readings import LiveReading
from swarm.base.readings import LACKS, LATE_S, show_heat, show_memory, show_power, show_share
from swarm.base.units import show_elapsed

ALL_COLUMNS: Final = 80
"""Least width of a terminal that shows everything; a narrower one leaves out the GPUs' temperature and power."""


class ShownReading(SensorValues):
    """A sensor reading and its time."""

    at: Instant
    late: bool
    """Whether the reading is more than 10 s old."""


NONE_SHOWN: Final[Mapping[str, ShownReading]] = MappingProxyType({})


def shown_readings(
    readings: Mapping[str, LiveReading], running: Container[str], now: float
) -> dict[str, ShownReading]:
    """Readings for programs, by worker. `running`: workers that run tasks of this home; `now`: wall seconds since 1970."""
    return {
        peer: shown_as(ShownReading, one.reading, at=one.at, late=now - one.at > LATE_S)
        for peer, one in readings.items()
        if peer in running
    }


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of the table: a device with its first GPU, or another GPU of it."""

    device: str
    values: SensorValues | None
    gpu: GpuReading | None
    age_s: float = 0.0


def readings_lines(readings: Sequence[tuple[str, LiveReading]]) -> int:
    """The number of lines that the table takes below its head."""
    return sum(max(1, len(one.reading.gpus)) for _, one in readings)


def readings_table(
    readings: Sequence[tuple[str, LiveReading]], now: float, *, width: int, most: int | None
) -> Table:
    """`readings`: each with the device's label; `now`: wall seconds since 1970; `width`: of the terminal; `most`: columns for labels, None:
    as many as needed.
    """
    lines = [line for label, one in readings for line in _lines_of(label, one, now)]
    gpus = any(line.gpu is not None for line in lines)
    roomy = gpus and width >= ALL_COLUMNS
    late = any(line.age_s > LATE_S for line in lines)

    def own(show: Callable[[SensorValues], str]) -> Callable[[_Line], str]:
        return lambda line: "" if line.values is None else show(line.values)

    def of_gpu(show: Callable[[GpuReading], str]) -> Callable[[_Line], str]:
        return lambda line: LACKS if line.gpu is None else show(line.gpu)

    def age(line: _Line) -> Text:
        return Text(f"{show_elapsed(line.age_s)} ago" if line.age_s > LATE_S else "", "yellow")

    return table(
        lines,
        (name("device", 8, 8 if late and width < ALL_COLUMNS else most), lambda line: line.device),
        (number("cpu", 5), own(lambda values: show_share(values.cpu))),
        (number("memory", 8), own(lambda values: show_memory(values.memory))),
        (number("temp", 6), own(lambda values: show_heat(values.temperature_c))),
        (number("power", 5), own(lambda values: show_power(values.power_w))),
        (number("gpu", 5), of_gpu(lambda gpu: show_share(gpu.utilisation))) if gpus else None,
        (number("vram", 8), of_gpu(lambda gpu: show_memory(gpu.memory))) if gpus else None,
        (number("gpu °C", 6), of_gpu(lambda gpu: show_heat(gpu.temperature_c))) if roomy else None,
        (number("gpu W", 5), of_gpu(lambda gpu: show_power(gpu.power_w))) if roomy else None,
        (number("read", 8), age) if late else None,
        gap=1,
    )


def _lines_of(label: str, one: LiveReading, now: float) -> Iterator[_Line]:
    first, *others = one.reading.gpus or (None,)
    yield _Line(label, one.reading, first, now - one.at)
    for index, gpu in enumerate(others, start=1):
        yield _Line(f"  gpu {index}", None, gpu)
