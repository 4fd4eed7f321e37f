"""Devices that run a unit of a campaign, but not the unit with which it is to take turns. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from protocol.values.advert import Advert
from protocol.values.features import UNITS_IN_TURNS, needs
from protocol.values.match import match
from protocol.values.requirement import Clause, Op, Requirement
from results.row.simulated import shown_name
from scheduler.planning.tasks import PlannedCell
from swarm.base.text import safe_text

MAX_LINES: Final = 8


def left_out(cells: Iterable[PlannedCell], adverts: Sequence[Advert]) -> tuple[str, ...]:
    """A line for each of `adverts` that meets everything else that a cell requires."""
    lines: dict[str, None] = {}
    for cell in cells:
        if cell.beside is None or cell.beside.unit == cell.unit:
            continue
        of_turns = [Clause(attribute="units", op=Op.HAS, value=cell.beside.unit), needs(UNITS_IN_TURNS)]
        for advert in adverts:
            missing = match(Requirement(clauses=cell.clauses), advert).missing
            if missing and all(each.clause in of_turns for each in missing):
                why = "; ".join(map(str, missing))
                lines[f"{shown_name(advert, 40)}: {safe_text(why, 200)}"] = None
    shown = list(lines)[:MAX_LINES]
    more = len(lines) - len(shown)
    lack = "device lacks" if more == 1 else "devices lack"
    return (*shown, *([f"{more} more {lack} the second unit"] if more else []))
