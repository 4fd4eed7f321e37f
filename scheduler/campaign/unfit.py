"""Jobs of the plain form whose unit cannot run the model. The form may ask for any unit, and has one model for all: such a job fails at
once, and the others run. Pure.
"""

from __future__ import annotations

from scheduler.campaign.endings import family_of, units_for
from scheduler.campaign.fields import UNITS
from scheduler.campaign.model import Campaign
from swarm.download.urls import name_in


def unfit_jobs(campaign: Campaign) -> dict[str, str]:
    """The units of such jobs, by the model's ending, each with the reason and the units that can; none where no job could run."""
    entry, units = campaign.models[0], [job.unit for job in campaign.jobs]
    name = entry.path or name_in(entry.url or "")
    family, fit = family_of(name), units_for(name, units)
    if family is None:
        return {}
    can = f"units that can: {', '.join(_of_family(family))}"
    return {unit: f"{unit} cannot run {entry.title}; {can}" for unit in units if unit not in fit}


def give_another(family: str) -> str:
    """What to write in a job instead."""
    first, *others = _of_family(family)
    return f'give "compute_unit": "{first}", or one of {", ".join(others)}'


def _of_family(family: str) -> tuple[str, ...]:
    return tuple(unit for unit in UNITS if unit.endswith(family))
