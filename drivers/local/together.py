"""Several models in one child that take turns (`drivers.measure.interleave`): first the models of `beside`, then the order's own.

The events are those of a run of the order's own model, plus a `BesideReport` for each other model and one `RoundsReport`.
"""

from __future__ import annotations

import gc
import random
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from drivers.contract import memory
from drivers.contract.base import (
    BesideReport,
    CheckReport,
    Event,
    HostState,
    LoadReport,
    MeasureReport,
    ModelDescription,
    ProgressReport,
    RoundsReport,
    Unfit,
    WorkOrder,
)
from drivers.local.driver import LocalDriver
from drivers.local.model import LocalModel, Prepared, check_outputs, describe, load
from drivers.measure import host
from drivers.measure.cpu_clock import computes_on_cpu, cpu_clock
from drivers.measure.interleave import (
    RoundPlan,
    RoundTimes,
    check_shapes,
    draw_orders,
    plan_rounds,
    time_rounds,
)
from drivers.measure.timing import CHUNK_NS, GLANCES, WarmUp, warm_up
from protocol.formats.phase import Phase
from protocol.formats.reference_model import reference_model

PLAIN: Final[Mapping[str, Any]] = {
    "dims": {},
    "own_dims": (),
    "shapes": {},
    "inputs": {},
    "batch": None,
    "batch_dim": None,
    "pre": (),
    "post": (),
}
"""Changes to the order for a reference model: inputs and steps given in the order apply to the order's own model only."""


def is_reference(path: str) -> bool:
    """Whether the file is the reference model that comes with this program, which has inputs of its own."""
    file = Path(path)
    return (
        file.is_file()
        and file.stat().st_size == len(reference_model())
        and file.read_bytes() == reference_model()
    )


def order_of(order: WorkOrder) -> WorkOrder:
    """The order of one of several models: inputs given in the order do not apply to a reference model in `beside`."""
    return replace(order, **PLAIN) if order.slot and is_reference(order.model) else order


@dataclass(slots=True)
class LoadedModel:
    """One of the models, with inputs that run."""

    model: LocalModel
    prepared: Prepared
    warm: WarmUp


def run_together(driver: LocalDriver, order: WorkOrder) -> Iterator[Event]:
    """Run one launch. Raises `Unfit` if a model does not run, `Unshaped` if the models take inputs of different shapes."""
    if order.witnessed:
        raise Unfit(
            "a witnessed run has one model: a model that takes turns with others cannot be measured again alone"
        )
    own, *others = (
        order_of(replace(order, model=path, beside=(), slot=slot))
        for slot, path in enumerate((order.model, *order.beside))
    )
    with ExitStack() as running:
        opened = yield from load(driver, own)
        models = [opened]
        for number, other in enumerate(others):
            models.insert(number, (yield from _load_beside(driver, other)))
        loaded = [prepare(model, running) for model in models]
        check_shapes([sizes for each in loaded if (sizes := input_shapes(each)) is not None])
        measured, rounds = yield from _measure(loaded, order)
        if not order.brief:
            for each in loaded[:-1]:
                yield BesideReport(*report_on(driver, each))
        described, checked = (None, None) if order.brief else report_on(driver, loaded[-1])
        if described is not None:
            yield described
        yield measured
        yield rounds
        if checked is not None:
            yield checked


def prepare(model: LocalModel, running: ExitStack) -> LoadedModel:
    """Find inputs that run."""
    running.enter_context(model.running())
    prepared, order = model.prepare(), model.order
    warm = WarmUp(order.runs, order.warmup, max(1, order.warmup_floor), order.window_s)
    return LoadedModel(model, prepared, warm)


def _load_beside(driver: LocalDriver, order: WorkOrder) -> Generator[Event, None, LocalModel]:
    """Load a model without its `LoadReport`: the process already had a model in it."""
    events = load(driver, order)
    while True:
        try:
            event = next(events)
        except StopIteration as end:
            model: LocalModel = end.value
            return model
        if not isinstance(event, LoadReport):
            yield event


def input_shapes(each: LoadedModel) -> tuple[tuple[int, ...], ...] | None:
    """Shapes in the order of the model's inputs; None: it is the reference model in `beside`, which has inputs of its own."""
    if each.model.order.slot and is_reference(each.model.order.model):
        return None
    return tuple(each.prepared.shapes[one.name] for one in each.model.inputs)


def _measure(
    loaded: Sequence[LoadedModel], order: WorkOrder
) -> Generator[ProgressReport, None, tuple[MeasureReport, RoundsReport]]:
    """Warm up each model, then time all in turns; the times of the last model are the order's own."""
    reader = host.HostReader()
    before, used = reader.look(), time.process_time()
    glances = deque[float | None](maxlen=GLANCES)
    loops = [each.prepared.loop() for each in loaded]
    for each, loop in zip(loaded, loops, strict=True):
        each.warm.add(each.prepared.first_ns)
        yield from warm_up(loop, each.warm, reader, glances)
    plan = plan_rounds([each.warm.typical_ns for each in loaded])
    orders = draw_orders(plan, random.Random())
    yield ProgressReport(Phase.RUN, 0, plan.rounds)
    gc.collect()
    gc.disable()
    began = reported = time.perf_counter_ns()
    try:
        rounds = time_rounds(loops, plan, orders, cpu_clock())
        while True:
            try:
                done = next(rounds)
            except StopIteration as end:
                times: RoundTimes = end.value
                break
            if time.perf_counter_ns() - reported > CHUNK_NS:
                reported = time.perf_counter_ns()
                glances.append(reader.others_now())
                yield ProgressReport(Phase.RUN, done, plan.rounds)
    finally:
        gc.enable()
    state = host.state(before, reader.look(), time.process_time() - used, reader, glances)
    return (
        _own_times(loaded[-1], plan, times, began, loops[-1].overhead_ns(), state),
        RoundsReport(
            times.wall_ns, times.cpu_ns if computes_on_cpu(order.unit) else None, plan.per_block, plan.turns
        ),
    )


def _own_times(
    own: LoadedModel, plan: RoundPlan, times: RoundTimes, began: int, overhead_ns: int, state: HostState
) -> MeasureReport:
    """The order's own times: one sample for each round, the mean of its inferences."""
    per_round = plan.per_block[-1] * plan.turns
    wall_s = sum(times.wall_ns[-1]) * per_round / 1e9
    return MeasureReport(
        samples_ns=times.wall_ns[-1],
        warmup_ns=tuple(own.warm.samples),
        cpu_s=wall_s if times.cpu_ns is None else sum(times.cpu_ns[-1]) * per_round / 1e9,
        wall_s=wall_s,
        peak_bytes=memory.peak_bytes(own.prepared.peak_was_reset),
        timer_overhead_ns=overhead_ns,
        involuntary_switches=None,
        per_sample=per_round,
        began_ns=began,
        host=state,
    )


def report_on(driver: LocalDriver, each: LoadedModel) -> tuple[ModelDescription, CheckReport]:
    """What ran, and whether its outputs agree."""
    model, prepared = each.model, each.prepared
    outputs = prepared.outputs()
    description = describe(driver, model, prepared, model.ran_on(prepared), [each.warm.note()])
    return description, check_outputs(model, prepared, outputs)
