"""Reading many tasks at once gives the same result as reading each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from protocol.errors import RemoteProtocolError
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, TaskBodies, TaskReader, Timeouts, read_task, task_body


def tasks() -> Iterator[Task]:
    """Ids of several lengths. Some tasks differ in more than their ids, and some name an id, their own or another's, elsewhere."""
    for n in (*range(1, 13), 100, 101):
        name = f"c-1/{n}"
        yield Task(
            campaign="c-1", task=name, scheduler="S" * 44, model=Model(name="m", sha256="0" * 64, size=1), unit="CPU",
            requirement=Requirement(), measure=Measure(threads=1 + n % 2), timeouts=Timeouts(),
            note={3: name, 4: "c-1/3", 5: "c-1/1", 6: f"{name} {name}"}.get(n, ""),
        )  # fmt: skip


def test_many_tasks_are_read_as_each_is_read() -> None:
    reader = TaskReader()
    for _ in range(2):
        for task in tasks():
            assert reader.read(task.task, task_body(task)) == read_task(task_body(task)) == task


def test_bodies_of_many_tasks_are_what_they_were_and_share_what_they_can() -> None:
    whole = {task.task: task_body(task) for task in tasks()}
    bodies, others = TaskBodies(whole), TaskBodies({"odd": b"without its id"})
    assert dict(bodies) == whole
    assert bodies._parts["c-1/7"] is bodies._parts["c-1/9"]
    bodies.add(others)
    assert bodies["odd"] == b"without its id"
    del bodies["odd"]
    assert dict(bodies) == whole


def test_what_is_no_task_is_refused_also_after_one_like_it() -> None:
    reader, body = TaskReader(), task_body(next(tasks()))
    reader.read("c-1/1", body)
    for broken in (body[:-1], body + b"c-1/1", body.replace(b"CPU", b"\xc1\xc1\xc1"), b""):
        with pytest.raises(RemoteProtocolError):
            reader.read("c-1/1", broken)


def test_a_task_under_another_id_keeps_its_own() -> None:
    reader, body = TaskReader(), task_body(next(tasks()))
    assert [reader.read(name, body).task for name in ("c-1/2", "c-1", "c-1/1", "c-1/2", "c-1")] == [
        "c-1/1"
    ] * 5


def test_a_note_that_names_an_id_is_not_taken_for_the_id() -> None:
    reader, task = TaskReader(), next(tasks())
    for note in ("c-1/1", "c-1/2"):
        body = task_body(task.model_copy(update={"note": note}))
        assert reader.read(note, body) == read_task(body)


def test_a_task_knows_its_models_and_where_each_can_be_fetched() -> None:
    own, other = (
        Model(name=name, sha256=digit * 64, size=1) for name, digit in (("own", "a"), ("other", "b"))
    )
    urls = {"model_url": "https://example.org/own", "beside_urls": {"b" * 64: "https://example.org/other"}}
    task = next(tasks()).model_copy(update={"model": own, "beside": (other,), **urls})
    assert task.models() == (own, other)
    assert [task.needs(digit * 64) for digit in "abc"] == [True, True, False]
    assert [task.url_of(model) for model in task.models()] == [
        "https://example.org/own",
        "https://example.org/other",
    ]
    assert read_task(task_body(task)) == task
