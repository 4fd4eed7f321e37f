"""Jobs of the plain form whose unit cannot run the model. The form may ask for any unit, and has one model for all jobs: such a job fails
at once, and the others run. Pure.
"""

from __future__ import annotations

from protocol.formats.frameworks import FORMATS_BY_FRAMEWORK, framework_of, runs
from scheduler.campaign.fields import UNITS
from scheduler.campaign.model import Campaign


def unfit_jobs(campaign: Campaign) -> dict[str, str]:
    """The units of such jobs, judged by the model's file ending, each with the reason and the units that can run it; none if no job could
    run.
    """
    entry, units = campaign.models[0], [job.unit for job in campaign.jobs]
    form = entry.known_format
    if form is None or not any(campaign.runs(unit, form) for unit in units):
        return {}
    can = f"units that can: {', '.join(_units_for(form))}"
    return {
        unit: f"{unit} cannot run {entry.title}; {can}" for unit in units if not campaign.runs(unit, form)
    }


def give_another(form: str) -> str:
    """What to write in a job instead."""
    first, *others = _units_for(form)
    return f'give "compute_unit": "{first}"' + (f", or one of {', '.join(others)}" if others else "")


def _units_for(form: str) -> tuple[str, ...]:
    return tuple(unit for unit in UNITS if framework_of(unit) in FORMATS_BY_FRAMEWORK and runs(unit, form))
