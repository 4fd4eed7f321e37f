"""A running campaign as a matrix: the state of each task is in the place where its median will be."""

from __future__ import annotations

import dataclasses

import pytest

from protocol.formats.phase import Phase
from protocol.values.attempt import TaskState
from protocol.values.requirement import Requirement, parse_clause
from protocol.values.task import Measure, Model, Task, Timeouts, task_body
from scheduler.output.live_matrix import cell_words, columns_of, live_lines
from scheduler.store.rows import TaskRow
from swarm.net.identity import Identity

WORKER = Identity.from_seed("worker").peer_id
TASK = TaskRow(
    id="c-1/1", campaign="c-1", n=1, model="net.onnx", unit="CPU (ONNX)", sha256="0" * 64,
    state=TaskState.RUNNING, phase=Phase.RUN, done=120, total=200, device="mini",
)  # fmt: skip


def task(n: int, **changes: object) -> TaskRow:
    return dataclasses.replace(TASK, id=f"c-1/{n}", n=n, **changes)  # type: ignore[arg-type]


def body(*clauses: str) -> bytes:
    need = Requirement(clauses=tuple(map(parse_clause, clauses)))
    model = Model(name="net.onnx", sha256="0" * 64, size=1)
    return task_body(
        Task(
            campaign="c-1",
            task="c-1/1",
            scheduler=WORKER,
            model=model,
            unit="CPU (ONNX)",
            requirement=need,
            measure=Measure(),
            timeouts=Timeouts(queue_s=1, fetch_s=1, load_s=1, run_s=1),
        )
    )


@pytest.mark.parametrize(
    ("shown", "outcome", "words"),
    [
        (task(1, state=TaskState.SUCCEEDED), "12.5 ms ±2 %", "12.5 ±2%"),
        (task(1, state=TaskState.SUCCEEDED), "12.5 ms ±2 %, noisy", "12.5 ±2% ?"),
        (task(1, state=TaskState.SUCCEEDED), "12.5 ms ±2 % · host busy 6%; waiting 7%", "12.5 ±2% ·"),
        (task(1, state=TaskState.SUCCEEDED), "", "done"),
        (task(1, state=TaskState.FAILED), "", "failed"),
        (task(1, state=TaskState.PENDING), "", "waiting"),
        (task(1, state=TaskState.QUEUED), "", "queued"),
        (task(1, phase=Phase.QUEUED), "", "queued"),
        (task(1, phase=Phase.PREPARE, total=10), "", "host busy"),
        (task(1, phase=None, total=None), "", "starting"),
        (task(1), "", "run 60%"),
    ],
)
def test_each_place_says_in_a_word_where_its_task_stands(shown: TaskRow, outcome: str, words: str) -> None:
    assert cell_words(shown, outcome) == words


def test_a_column_is_the_device_or_the_worker_that_the_task_is_pinned_to() -> None:
    bodies = {
        "c-1/1": body("units has CPU (ONNX)", "device == d-7"),
        "c-1/2": body("device == d-7", f"peer ~ {WORKER}"),
        "c-1/3": body("units has CPU (ONNX)"),
        "c-1/4": body("device == d-8"),
    }
    names = {"d-7": "mini", WORKER: "worker-2"}
    assert columns_of(bodies, names) == {"c-1/1": "mini", "c-1/2": "worker-2", "c-1/3": "", "c-1/4": "d-8"}


def test_the_matrix_stands_before_anything_is_measured_and_no_line_is_wider_than_the_screen() -> None:
    names = [f"bench-machine-{n}" for n in range(8)]
    tasks = [
        task(8 * m + n + 1, model=model, device="", state=TaskState.PENDING, phase=None)
        for m, model in enumerate(("net.onnx", "another-network.onnx"))
        for n in range(8)
    ]
    columns = {each.id: names[(each.n - 1) % 8] for each in tasks}
    tasks[9] = task(10, model="another-network.onnx", state=TaskState.SUCCEEDED, device="bench-machine-1")
    lines = [line.plain for line in live_lines(tasks, columns, {"c-1/10": "3.14 ms ±1.2 %"}, 80)]
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 80
    assert all(text.count(name) == 1 for name in names)
    assert text.count("waiting") == 15
    assert text.count("3.14 ±1.2%") == 1
    assert lines[1:3] == ["net.onnx", "  CPU (ONNX)" + "".join(["          waiting"] * 4)]


def test_a_task_for_any_device_stands_under_the_one_that_took_it() -> None:
    lines = [line.plain for line in live_lines([task(1)], {}, {}, 80)]
    assert lines == ["                 mini", "net.onnx", "  CPU (ONNX)  run 60%"]
