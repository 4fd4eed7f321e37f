"""Keeps simulations apart from measurements: by the verdict `simulated`, and by a mark after the names of simulated devices. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

from results.row.verdicts import RowVerdict
from swarm.base.text import safe_text

MARK: Final = "(simulation)"


class HasVerdict(Protocol):
    """A row, a cell of a matrix, or a line of a list; an empty verdict means none."""

    @property
    def verdict(self) -> str: ...


class Named(Protocol):
    """An advert, or a view of one."""

    @property
    def name(self) -> str: ...
    @property
    def simulated(self) -> bool | None: ...


Judged = TypeVar("Judged", bound=HasVerdict)


def prefer_measured(results: Iterable[Judged]) -> list[Judged]:
    """The measured results; simulations only if there is nothing else."""
    every = list(results)
    return [result for result in every if result.verdict != RowVerdict.SIMULATED] or every


def mark_simulated(name: str, simulated: bool | None) -> str:
    """`name`, with the mark if it belongs to a simulation."""
    return f"{name} {MARK}" if simulated else name


def shown_name(device: Named, limit: int = 200) -> str:
    """A device's name for people, cut to `limit` characters and marked if simulated."""
    return mark_simulated(safe_text(device.name, limit), device.simulated)
