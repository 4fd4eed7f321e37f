"""Derives a campaign's tasks. Pure: the same campaign, models and devices give the same tasks with the same ids, on any machine.

models × jobs (one for each unit) × threads × batches × sittings × spread × replicas ──▶ Task c-…/1, c-…/2, …

Replicas of a cell never share a device: each is given devices of one class that the others do not get.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from protocol.errors import CampaignError
from protocol.formats.reference_model import NAME, reference_model, reference_sha256
from protocol.formats.spread import with_gaps
from protocol.formats.sustain import with_sustained
from protocol.values.advert import Advert
from protocol.values.features import UNITS_IN_TURNS, needs
from protocol.values.match import compile_requirement
from protocol.values.requirement import Clause, Op, Requirement, parse_clause
from protocol.values.sitting import Sitting
from protocol.values.task import MAX_TASK, Measure, Model, Step, Task, Timeouts, task_body
from scheduler.campaign.against import REFERENCE, Base, Bases
from scheduler.campaign.model import Campaign, JobFields, ModelEntry, StepEntry
from scheduler.campaign.sizes import dims_of, own_dims
from scheduler.models.files import Models

GIB: Final = 1024**3
MAX_TASKS: Final = 1_000_000
"""Most tasks of one campaign, over all its devices: its scheduler keeps 0.7 KB of each."""
MAX_SHOWN: Final = 100_000
"""Most tasks of a campaign that is planned for people to see, since all of them are in memory at once."""
MAX_CLAUSES: Final = 32
"""Most clauses of a requirement, as in the protocol."""
MAX_NAMED: Final = 16
"""Most devices named for one replica."""
LARGE_MODEL: Final = 256 * 1024**2
"""Size from which a model requires memory: its file and its weights are in memory together while it loads."""


@dataclass(frozen=True, slots=True)
class _Pin:
    """Clauses that restrict one task of a cell to some devices."""

    clauses: tuple[Clause, ...] = ()
    replica: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """One square of the matrix, before devices: what a person sees in a plan."""

    model: ModelEntry
    unit: str
    runs: int
    threads: int | None
    """None: as many as physical cores."""
    batch: int | None
    """None: as the model has it."""
    clauses: tuple[Clause, ...]
    """What it requires of a device, the unit first."""
    beside: Base | None = None
    """The model on a unit with which it takes turns."""

    @property
    def against(self) -> str | None:
        """The name of `beside`; None: the cell is measured alone."""
        return None if self.beside is None else self.beside.words(self.model.label, self.unit)


def cells(campaign: Campaign) -> tuple[PlannedCell, ...]:
    """The matrix in file order: models, then jobs or units, then threads, then batches. What others are compared with has no cell of its
    own.
    """
    return tuple(
        PlannedCell(
            model=entry,
            unit=job.unit,
            runs=job.runs or campaign.measure.runs,
            threads=None if count == "physical" else count,
            batch=batch,
            clauses=_clauses(campaign, job, base),
            beside=base,
        )
        for entry, job, base in _measured(campaign)
        for count in campaign.measure.threads
        for batch in campaign.batches(entry)
    )


def _measured(campaign: Campaign) -> Iterator[tuple[ModelEntry, JobFields, Base | None]]:
    """Each model on each of its units, with what it takes turns with."""
    bases = Bases(campaign)
    for entry in campaign.models:
        for job in campaign.lines_of(entry):
            base = bases.of(entry, job.unit)
            if base is None or base.entry is not entry or base.unit != job.unit:
                yield entry, job, base


def needs_devices(campaign: Campaign) -> bool:
    """Whether the tasks depend on which devices are available."""
    return campaign.devices.spread != "any" or campaign.replicas > 1


def least_tasks(campaign: Campaign) -> int:
    """The number of the campaign's tasks on one device of each kind that it asks for."""
    return len(cells(campaign)) * campaign.measure.sittings * campaign.replicas


def requirements(campaign: Campaign) -> tuple[Requirement, ...]:
    """What to search for before tasks exist: one requirement for each distinct unit and set of clauses, in file order."""
    if campaign.measure.against is None:
        return tuple(dict.fromkeys(Requirement(clauses=_clauses(campaign, job)) for job in campaign.lines()))
    pairs = {(job, base and base.unit): (job, base) for _, job, base in _measured(campaign)}
    return tuple(dict.fromkeys(Requirement(clauses=_clauses(campaign, *pair)) for pair in pairs.values()))


def derive(
    campaign: Campaign,
    models: Models,
    *,
    campaign_id: str,
    scheduler: str,
    devices: Sequence[Advert] = (),
    most: int = MAX_TASKS,
) -> Iterator[tuple[PlannedCell, Task]]:
    """Yield the tasks of `campaign` with their cells, numbered from 1; there may be very many. `scheduler`: the peer id that will sign
    them.

    `devices` is used only if `needs_devices`. A cell that fits none of these devices still becomes a task, open to any device that fits. So
    it visibly finds no device, and is not silently left out. Raises `CampaignError` above `most` tasks, and for a task larger than the
    protocol's limit.
    """
    if least_tasks(campaign) > most:
        raise _too_many(campaign, most)
    adverts = _chosen(campaign, devices) if needs_devices(campaign) else []
    number = 0
    for cell in cells(campaign):
        form = _form(campaign, cell, models, campaign_id, scheduler)
        need = form.requirement
        fitting = list(filter(compile_requirement(need), adverts))
        pins = _pins(campaign, fitting) or [_Pin()]
        for sitting, pin in product(_sittings(campaign, len(pins)), pins):
            number += 1
            if number > most:
                raise _too_many(campaign, most)
            own = {
                "task": f"{campaign_id}/{number}",
                "requirement": _requirement(cell, (*need.clauses, *pin.clauses)) if pin.clauses else need,
                "note": pin.note,
                "replica": pin.replica,
                "sitting": sitting,
            }
            task = form.model_copy(update=own)
            if len(task_body(task)) > MAX_TASK:
                raise cell.model.error(
                    f"the task for {task.model.name!r} is larger than {MAX_TASK // 1024} KiB",
                    "use fewer or shorter clauses and dims",
                )
            yield cell, task


def _form(campaign: Campaign, cell: PlannedCell, models: Models, campaign_id: str, scheduler: str) -> Task:
    """What the tasks of a cell have in common."""
    model = models[cell.model.key].model
    examples = models.get(cell.model.examples_key)
    beside = None if cell.beside is None else _model_of(cell.beside.entry, models)
    size = model.size + (0 if beside is None else beside.size) + (examples.model.size if examples else 0)
    return Task(
        campaign=campaign_id,
        task=f"{campaign_id}/1",
        scheduler=scheduler,
        model=model,
        unit=cell.unit,
        requirement=_requirement(cell, (*cell.clauses, *_memory_clauses(size))),
        measure=_measure(campaign, cell),
        timeouts=_timeouts(campaign),
        memory=max(4 * GIB, 4 * (model.size if beside is None else max(model.size, beside.size)) + GIB),
        model_url=cell.model.public_url,
        **_beside(cell, beside),
        examples=None if examples is None else examples.model,
    )


def _requirement(cell: PlannedCell, clauses: tuple[Clause, ...]) -> Requirement:
    if len(clauses) > MAX_CLAUSES:
        raise cell.model.error(
            f"a task has more than {MAX_CLAUSES} clauses, including the clauses that keep replicas apart",
            "use fewer clauses under devices.where, or fewer replicas",
        )
    return Requirement(clauses=clauses)


def tasks_of(planned: Iterable[tuple[PlannedCell, Sequence[Task]]]) -> tuple[Task, ...]:
    """The tasks of all cells as one tuple."""
    return tuple(task for _, tasks in planned for task in tasks)


def derive_cells(
    campaign: Campaign,
    models: Models,
    *,
    campaign_id: str,
    scheduler: str,
    devices: Sequence[Advert] = (),
    most: int = MAX_SHOWN,
) -> tuple[tuple[PlannedCell, tuple[Task, ...]], ...]:
    """All tasks that `derive` gives, cell by cell."""
    made: list[tuple[PlannedCell, list[Task]]] = []
    planned = derive(
        campaign, models, campaign_id=campaign_id, scheduler=scheduler, devices=devices, most=most
    )
    for cell, task in planned:
        if not made or made[-1][0] is not cell:
            made.append((cell, []))
        made[-1][1].append(task)
    return tuple((cell, tuple(tasks)) for cell, tasks in made)


def _too_many(campaign: Campaign, most: int) -> CampaignError:
    """The error for a campaign with more than `most` tasks."""
    over_devices = needs_devices(campaign)
    return CampaignError(
        f"this campaign makes more than {most:,} tasks{' on the devices found' if over_devices else ''}",
        file=campaign.models[0].error("", "").file,
        hint=f"{'set devices.limit, or ' if over_devices else ''}split it into several campaigns"
        + (f"; submit takes up to {MAX_TASKS:,}, a plan shows {most:,}" if most < MAX_TASKS else ""),
    )


def _model_of(entry: ModelEntry, models: Models) -> Model:
    if entry is REFERENCE:
        return Model(name=NAME, sha256=reference_sha256(), size=len(reference_model()))
    return models[entry.key].model


def _beside(cell: PlannedCell, model: Model | None) -> dict[str, Any]:
    """The fields of a task whose model takes turns with this one."""
    if cell.beside is None or model is None:
        return {}
    url, unit = cell.beside.entry.public_url, cell.beside.unit
    return {
        "beside": (model,),
        "beside_urls": None if url is None else {model.sha256: url},
        "beside_units": None if unit == cell.unit else (unit,),
    }


def _sittings(campaign: Campaign, step: int) -> tuple[Sitting | None, ...]:
    """The sittings of each task of a cell. `step`: the cell's number of tasks without sittings."""
    measure = campaign.measure
    if measure.sittings == 1:
        return (None,)
    return tuple(
        Sitting(number=number, of=measure.sittings, step=step, apart_s=measure.apart_s)
        for number in range(1, measure.sittings + 1)
    )


def _measure(campaign: Campaign, cell: PlannedCell) -> Measure:
    measure = campaign.measure
    return Measure(
        runs=cell.runs,
        loads=measure.loads if measure.sustain is None else 1,
        precision=measure.precision,
        warmup=None if measure.warmup == "auto" else measure.warmup,
        threads=cell.threads,
        dims=dims_of(campaign, cell.model),
        own_dims=own_dims(campaign, cell.model),
        batch=cell.batch,
        batch_dim=None if cell.batch is None else cell.model.batch_dim,
        inputs=cell.model.declared,
        shapes=cell.model.shapes,
        seed=measure.seed,
        check=measure.check == "reference",
        pre=_steps(measure.pre),
        post=_steps(measure.post),
        sustain_s=measure.sustain,
        over_s=measure.over,
        compute_type=measure.compute_type,
    )


def _timeouts(campaign: Campaign) -> Timeouts:
    limits, measure = campaign.timeouts, campaign.measure
    run_s = with_sustained(limits.run, measure.sustain)
    run_s = with_gaps(run_s, measure.over, precise=measure.precision is not None)
    return Timeouts(queue_s=limits.queue, fetch_s=limits.fetch, load_s=limits.load, run_s=run_s)


def _steps(entries: Sequence[StepEntry]) -> tuple[Step, ...]:
    return tuple(Step(step=entry.step, of=entry.of, options=entry.options) for entry in entries)


def _clauses(campaign: Campaign, job: JobFields, beside: Base | None = None) -> tuple[Clause, ...]:
    """The clauses for the unit, the unit of the base beside, the job's own and the campaign's; each once."""
    units = dict.fromkeys((job.unit, job.unit if beside is None else beside.unit))
    here = [Clause(attribute="units", op=Op.HAS, value=unit) for unit in units]
    turns = [needs(UNITS_IN_TURNS)] if len(units) > 1 else []
    own = (parse_clause(text) for text in job.where)
    return tuple(dict.fromkeys((*here, *turns, *own, *campaign.devices.clauses())))


def _memory_clauses(size: int) -> tuple[Clause, ...]:
    """`size`: of its models together, in bytes."""
    return () if size < LARGE_MODEL else (Clause(attribute="ram", op=Op.GE, value=2 * size),)


# -- replicas -------------------------------------------------------------------------------------------------------------------


def _pins(campaign: Campaign, fitting: Sequence[Advert]) -> list[_Pin]:
    """What distinguishes the tasks of one cell; empty where one task is open to any device."""
    replicas = campaign.replicas
    if campaign.devices.spread == "worker":
        return [_Pin(_worker_pin(advert)) for advert in fitting]
    if campaign.devices.spread == "device":
        devices = dict.fromkeys(advert.device for advert in fitting)  # the nodes of one device share its id
        return [_Pin((Clause(attribute="device", op=Op.EQ, value=device),)) for device in devices]
    groups = list(_grouped(fitting, by_device=False).values())
    if replicas == 1:
        return [_Pin(_class_pin(group)) for group in groups]
    if campaign.devices.spread == "any" and groups:
        largest = max(groups, key=lambda group: len({advert.device for advert in group}))
        groups = [largest]  # the first of equals
    if not groups:
        note = f"{replicas} devices of one class are needed, but none is there"
        return [_Pin((), number, note) for number in range(1, replicas + 1)]
    return [pin for group in groups for pin in _replica_pins(group, replicas)]


def _replica_pins(group: Sequence[Advert], count: int) -> list[_Pin]:
    """One pin for each replica on a class. The known devices are dealt out in turn; a replica without one may use any other device of the
    class.
    """
    kind = _class_pin(group)
    devices = list(dict.fromkeys(advert.device for advert in group))
    pins: list[_Pin] = []
    for number in range(1, count + 1):
        own = tuple(devices[number - 1 :: count][:MAX_NAMED])
        if own:
            one = Clause(attribute="device", op=Op.EQ, value=own[0])
            several = Clause(attribute="device", op=Op.IN, value=own)
            pins.append(_Pin((*kind, one if len(own) == 1 else several), number))
        else:
            others = tuple(Clause(attribute="device", op=Op.NE, value=device) for device in devices)
            verb = "is" if len(devices) == 1 else "are"
            note = f"{count} devices of one class are needed, but only {len(devices)} {verb} there"
            pins.append(_Pin((*kind, *others), number, note))
    return pins


# -- spread ---------------------------------------------------------------------------------------------------------------------


def _chosen(campaign: Campaign, devices: Sequence[Advert]) -> list[Advert]:
    """The adverts that fit at least one job, in a fixed order, from at most `limit` devices, classes or workers."""
    requested = list(map(compile_requirement, requirements(campaign)))
    fitting = [advert for advert in devices if not advert.gone and any(fits(advert) for fits in requested)]
    fitting.sort(key=lambda advert: (advert.name, advert.device, advert.peer))
    if campaign.devices.limit is None:
        return fitting
    if campaign.devices.spread == "worker":
        return fitting[: campaign.devices.limit]
    by_device = campaign.devices.spread == "device"
    groups = _grouped(fitting, by_device=by_device)
    stored = {advert.peer for group in list(groups.values())[: campaign.devices.limit] for advert in group}
    return [advert for advert in fitting if advert.peer in stored]


def _grouped(adverts: Iterable[Advert], *, by_device: bool) -> Mapping[object, list[Advert]]:
    groups: dict[object, list[Advert]] = {}
    for advert in adverts:
        groups.setdefault(advert.device if by_device else device_class(advert), []).append(advert)
    return groups


def device_class(advert: Advert) -> tuple[str, int | None, str, str]:
    """The class of a device. Devices with the same chip, memory in whole GiB, operating system and architecture count as alike.

    The system's version is left out, so two machines of a lab that differ by a kernel patch are in one class.
    """
    ram = None if advert.ram is None else (advert.ram + GIB // 2) // GIB
    return (advert.soc, ram, advert.os.split(" ")[0], advert.arch)


def _worker_pin(advert: Advert) -> tuple[Clause, ...]:
    """Clauses that only this worker meets. `peer ==` would also trust it; `~` matches the whole key, and admits nobody."""
    return (
        Clause(attribute="device", op=Op.EQ, value=advert.device),
        Clause(attribute="peer", op=Op.LIKE, value=advert.peer),
    )


def _class_pin(group: Sequence[Advert]) -> tuple[Clause, ...]:
    """Clauses that only devices of this class meet. If a fact is unknown, they name each device seen."""
    soc, ram, system, arch = device_class(group[0])
    if not (soc and system and arch) or ram is None or not system.isalnum():
        devices = tuple(dict.fromkeys(advert.device for advert in group))[:32]
        return (Clause(attribute="device", op=Op.IN, value=devices),)
    return (
        Clause(attribute="soc", op=Op.EQ, value=soc),
        Clause(attribute="ram", op=Op.GE, value=ram * GIB - GIB // 2),
        Clause(attribute="ram", op=Op.LT, value=ram * GIB + GIB // 2),
        Clause(attribute="os", op=Op.LIKE, value=f"{system}*"),
        Clause(attribute="arch", op=Op.EQ, value=arch),
    )
