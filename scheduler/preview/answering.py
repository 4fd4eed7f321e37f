"""Finds the devices that would measure a campaign now: trusted, fitting and answering. Nothing is committed. Blocking."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import trio

from protocol.errors import NothingFits, SarkError
from protocol.values.advert import Advert
from protocol.values.requirement import Requirement
from protocol.values.task import Task
from protocol.values.trust import MINE
from results.row.simulated import shown_name
from scheduler.campaign.model import Campaign
from scheduler.core.explain import ADVICE
from scheduler.models.files import Models
from scheduler.planning.tasks import PlannedCell, derive_cells, tasks_of
from scheduler.preview.left_out import left_out
from scheduler.preview.plan import make_plan, refusal
from scheduler.preview.survey import VISIT, SwarmVisit, kind_of, visit
from scheduler.trust.home import read_book
from scheduler.trust.untrusted import UntrustedDevice
from swarm.base.home import Home
from swarm.base.names import disambiguate_names
from swarm.base.text import safe_text
from swarm.net.identity import load_or_create

BuildCampaign = Callable[[Sequence[Advert]], Campaign]
"""Returns the campaign, given these devices. Raises `SarkError` if it asks for something that they do not have."""


@dataclass(frozen=True, slots=True)
class AnsweringDevices:
    """The devices found."""

    campaign: Campaign
    """The campaign, restricted to units that some device would measure."""
    adverts: tuple[Advert, ...]
    """Adverts of the workers that would measure the campaign."""
    silent: tuple[str, ...]
    """Devices that fit but would not measure, with their reasons, and those that lack the unit with which theirs is to take turns."""
    untrusted: tuple[UntrustedDevice, ...]
    """Devices that fit but are not trusted."""
    why: tuple[str, ...]
    """Lines for people about what no device would measure."""

    @property
    def counted(self) -> dict[str, str]:
        """Display names, by id, of what is measured separately: each worker, or each device."""
        return self._workers if self.campaign.devices.spread == "worker" else self._devices

    @property
    def names(self) -> dict[str, str]:
        """Display names of the devices and the workers, by id."""
        return self._devices | self._workers

    @property
    def _workers(self) -> dict[str, str]:
        return disambiguate_names({advert.peer: shown_name(advert, 40) for advert in self.adverts})

    @property
    def _devices(self) -> dict[str, str]:
        """Each device by the names of all its workers, since any of them may run the task."""
        workers: dict[str, list[str]] = {}
        for advert in self.adverts:
            workers.setdefault(advert.device, []).append(shown_name(advert, 40))
        return disambiguate_names(
            {device: "/".join(dict.fromkeys(names)) for device, names in workers.items()}
        )


def find_answering(
    home: Home, campaign_on: BuildCampaign, models: Models, needs: Sequence[Requirement], gates: Sequence[str]
) -> AnsweringDevices:
    """`needs`: the minimum requirements of the tasks. Raises `Unreachable` when no gate answers, and the errors of `campaign_on`."""
    scheduler = load_or_create(home.key("scheduler")).peer_id

    def cells(campaign: Campaign, devices: Sequence[Advert]) -> Sequence[tuple[PlannedCell, Sequence[Task]]]:
        return derive_cells(campaign, models, campaign_id=VISIT, scheduler=scheduler, devices=devices)

    def tasks(devices: Sequence[Advert]) -> Sequence[Task]:
        try:
            return tasks_of(cells(campaign_on(devices), devices))
        except SarkError:  # raised again below, when all devices are known
            return ()

    now = time.time()
    book = read_book(home, now)
    found = trio.run(partial(visit, gates, home, needs, tasks, priority=50, now=now, trust=MINE, book=book))
    try:
        campaign = campaign_on(found.adverts)
    except NothingFits:  # it may ask for an untrusted device
        campaign = campaign_on((*found.adverts, *found.others))
    planned = cells(campaign, found.adverts)
    willing, silent = _asked(found, tasks_of(planned))
    plan = make_plan(campaign, models, planned, found)
    units = tuple(
        unit for unit in campaign.units if any(cell.unit == unit and cell.serve for cell in plan.cells)
    )
    why = dict.fromkeys(cell.why for cell in plan.cells if not cell.serve)
    return AnsweringDevices(
        campaign.model_copy(update={"units": units or campaign.units}),
        tuple(willing),
        (*silent, *left_out([cell for cell, _ in planned], found.adverts), *found.clashes),
        found.untrusted,
        tuple(why),
    )


def _asked(found: SwarmVisit, tasks: Sequence[Task]) -> tuple[list[Advert], list[str]]:
    """The workers that would take one of these tasks; and, for each other device that fits one, a line with its reason."""
    willing: list[Advert] = []
    refusals: dict[str, str] = {}
    for advert in sorted(found.adverts, key=lambda advert: (advert.name, advert.peer)):
        kinds = [kind_of(task) for task in tasks if found.may_have(task.requirement, advert)]
        answers = [refusal(found.answers.get(advert.peer), kind) for kind in dict.fromkeys(kinds)]
        if not all(answers):
            willing.append(advert)
        elif answers:
            refusals[advert.device] = (
                f"{shown_name(advert, 40)}: {safe_text(answers[0].partition(ADVICE)[0], 200)}"
            )
    for advert in willing:
        refusals.pop(advert.device, None)
    return willing, list(refusals.values())
