"""A message to a worker always fits into a frame that the worker accepts."""

from __future__ import annotations

import pytest

from protocol.messages.work import WORK, Probe
from protocol.values.requirement import Clause, Op, Requirement
from protocol.values.task import Measure, Model, Task, Timeouts
from protocol.wire.codec import Decoder, Frame, FrameKind
from scheduler.conversation.requests import MAX_SHAPES, shapes_of
from swarm.net.identity import Identity

SCHEDULER = Identity.from_seed("scheduler").peer_id


def a_task(n: int, clauses: int = 1, width: int = 1) -> Task:
    clause = Clause(attribute="soc", op=Op.IN, value=tuple("x" * 10 for _ in range(width)))
    return Task(
        campaign="c-one",
        task=f"c-one/{n}",
        scheduler=SCHEDULER,
        model=Model(name="m.onnx", sha256=f"{n:064x}", size=10),
        unit="CPU (ONNX)",
        requirement=Requirement(clauses=(clause,) * clauses),
        measure=Measure(),
        timeouts=Timeouts(),
    )


@pytest.mark.parametrize(("clauses", "width"), [(1, 1), (14, 1), (32, 1), (24, 16), (32, 20)])
def test_a_probe_is_cut_to_what_a_worker_can_read(clauses: int, width: int) -> None:
    shapes = shapes_of([a_task(n, clauses, width) for n in range(1, 41)], lambda task: 50)
    assert 1 <= len(shapes) <= MAX_SHAPES
    sent = WORK.encode(Frame(FrameKind.CALL, 1, Probe(campaign="c-one", shapes=shapes)))
    decoder = Decoder(WORK)
    decoder.feed(sent)
    frame = decoder.next()
    assert frame is not None
    assert isinstance(frame.message, Probe)
    assert frame.message.shapes == shapes


def test_a_probe_of_long_words_is_cut_by_its_bytes() -> None:
    clause = Clause(attribute="soc", op=Op.LIKE, value="y" * 200)
    tasks = [
        a_task(n).model_copy(update={"requirement": Requirement(clauses=(clause,) * 20)})
        for n in range(1, 17)
    ]
    shapes = shapes_of(tasks, lambda task: 50)
    assert 1 <= len(shapes) < MAX_SHAPES
    assert len(WORK.encode(Frame(FrameKind.CALL, 1, Probe(campaign="c-one", shapes=shapes)))) < 40_000


def test_tasks_that_are_alike_are_counted_together_wherever_they_come() -> None:
    alike = [a_task(1).model_copy(update={"task": f"c-one/{n}"}) for n in (50, 51)]
    shapes = shapes_of([alike[0], *(a_task(n, 32, 20) for n in range(2, 30)), alike[1]], lambda task: 50)
    assert shapes[0].count == 2
