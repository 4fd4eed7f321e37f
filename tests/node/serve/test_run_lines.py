"""The lines that a device's owner reads about runs."""

from __future__ import annotations

from node.serve import run_manager
from protocol.values.record import Record
from protocol.values.task import Model, Task
from protocol.words import Reason, RunOutcome


def test_a_model_with_a_strange_name_cannot_write_on_the_owners_terminal() -> None:
    model = Model.model_construct(name="\x1b[2Jm.onnx\n\u202e")
    task = Task.model_construct(task="c-1/3", model=model, unit="CPU (ONNX)", scheduler="12D3KooWabcdefgh")
    line = r"c-1/3 \x1b[2Jm.onnx\n\u202e on CPU (ONNX) for a\x1bb: running"
    assert run_manager.began_line(task, "a\x1bb") == line


def test_the_end_says_how_long_it_took_or_why_it_failed() -> None:
    done = Record.model_construct(task="c-1/3", outcome=RunOutcome.COMPLETE)
    assert run_manager.ended_line(done, 3.21) == "c-1/3: done in 3.2 s"
    reason = next(iter(Reason))
    lost = Record.model_construct(task="c-1/3", outcome=RunOutcome.FAILED, reason=reason, detail="a\nb")
    assert run_manager.ended_line(lost, 1.0) == rf"c-1/3: failed: {reason} (a\nb)"
