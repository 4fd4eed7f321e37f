"""How a campaign is shown to people: one grammar, at any width, live or piped."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from protocol.formats.phase import Phase
from protocol.values.attempt import TaskState
from protocol.words import Reason
from results.row.form import Configuration, median_text
from scheduler.core.allocator import why_waiting
from scheduler.core.ranking import WorkerView
from scheduler.output.campaign_tasks import Standing
from scheduler.output.watch import _Lines, render, waiting_line, watch
from scheduler.store.progress import fraction, progress_text
from scheduler.store.rows import CampaignRow, TaskRow
from scheduler.store.store import Store
from scheduler.submit.submit import submit_campaign
from swarm.base.home import Home
from swarm.base.units import show_elapsed, show_ms

TASK = TaskRow(
    id="c-abcdefgh/1",
    campaign="c-abcdefgh",
    n=1,
    model="mobilenet-v3-large-with-a-long-name.onnx",
    sha256="a" * 64,
    unit="CPU (ONNX)",
    state=TaskState.RUNNING,
    attempt=1,
    worker="12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN",
    device="laptop-7",
    lease="l-1",
    phase=Phase.RUN,
    done=120,
    total=200,
    median_ms=12.54,
    begun=0.0,
)
CAMPAIGN = CampaignRow(
    id="c-abcdefgh",
    name="vision",
    scheduler=TASK.worker or "",
    spec="{}",
    epoch=1,
    planned=True,
    created=100.0,
)


def changed(**changes: object) -> TaskRow:
    return dataclasses.replace(TASK, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("task", "text"),
    [
        (TASK, "run 120/200 (median 12.5 ms)"),
        (changed(phase=Phase.FETCH, done=12_100_000, total=28_000_000), "fetch 43 % (12.1 of 28.0 MB)"),
        (changed(phase=Phase.LOAD, done=2, total=5), "load 2/5"),
        (changed(phase=Phase.LOAD, done=0, total=1), "load"),
        (changed(phase=Phase.PREPARE, done=0, total=None), "prepare"),
        (
            changed(phase=Phase.PREPARE, done=3, total=10),
            "waits for other work on the device to end, 3 of at most 10 s",
        ),
        (changed(phase=Phase.WARM_UP, done=12, total=None), "warm-up 12"),
        (changed(phase=Phase.CHECK, done=0, total=None), "check"),
        (changed(phase=None, state=TaskState.LEASED), "starting"),
        (changed(state=TaskState.QUEUED), "queued"),
        (changed(state=TaskState.QUEUED, position=3, start_s=40.2), "queued 3rd, starts in ~40 s"),
        (changed(state=TaskState.QUEUED, position=11, start_s=0.4), "queued 11th, starts soon"),
        (changed(state=TaskState.QUEUED, position=22, start_s=3.2), "queued 22nd, starts in ~3.2 s"),
        (changed(state=TaskState.QUEUED, start_s=125.0), "queued, starts in ~2:05"),
        (
            changed(state=TaskState.QUEUED, position=1, note="quiet\nhours"),
            "queued 1st, start not known yet; quiet hours",
        ),
        (
            changed(state=TaskState.PENDING, preempted=1, reason=Reason.PREEMPTED, detail="mini-7 needed it"),
            "preempted, 1 of 2: mini-7 needed it",
        ),
        (
            changed(note="gives way to a task of priority 80"),
            "gives way to a task of priority 80; run 120/200 (median 12.5 ms)",
        ),
        (changed(state=TaskState.PENDING), "looking for a device"),
        (changed(state=TaskState.PENDING, note="no \x1b[31mgate"), "no [31mgate"),
        (changed(state=TaskState.SUCCEEDED), "done"),
        (changed(state=TaskState.FAILED, detail="", reason=Reason.CRASHED), "failed: crashed"),
        (changed(state=TaskState.CANCELLED), "cancelled"),
    ],
)
def test_one_grammar_says_how_a_task_stands(task: TaskRow, text: str) -> None:
    assert progress_text(task) == text


def test_only_what_can_be_estimated_has_a_bar() -> None:
    assert fraction(TASK) == 0.6
    assert fraction(changed(state=TaskState.SUCCEEDED)) == 1.0
    assert fraction(changed(total=None)) is None
    assert fraction(changed(state=TaskState.PENDING)) is None


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 10), (200, 50)])
def test_the_table_fits_the_terminal_and_keeps_what_moves(width: int, height: int) -> None:
    tasks = [
        changed(id=f"c-abcdefgh/{n}", n=n, state=TaskState.SUCCEEDED if n % 50 else TaskState.RUNNING)
        for n in range(1, 301)
    ]
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=True, color_system=None)
    console.print(
        render(CAMPAIGN, tasks, 114.0, width=width, height=height - 4, hint="Ctrl-C leaves it running")
    )
    lines = out.getvalue().splitlines()
    assert len(lines) < height
    assert all(len(line) <= width for line in lines)
    assert lines[0].startswith("vision  c-abcdefgh  294 of 300 done")
    assert "0:14" in lines[0]
    assert sum("run 120" in line for line in lines) == min(6, height - 4)
    assert f"{300 - (height - 4)} more" in lines[-1]


def test_what_is_hidden_is_counted_by_how_it_stands() -> None:
    states = [TaskState.SUCCEEDED] * 30 + [TaskState.RUNNING] * 3 + [TaskState.QUEUED] * 7
    states += [TaskState.PENDING] * 19 + [TaskState.FAILED]
    tasks = [changed(id=f"c-abcdefgh/{n}", n=n, state=state) for n, state in enumerate(states, 1)]
    out = io.StringIO()
    console = Console(file=out, width=80, height=24, color_system=None)
    console.print(render(CAMPAIGN, tasks, 114.0, width=80, height=21, hint="q leaves it running"))
    lines = out.getvalue().splitlines()
    assert len(lines) == 24
    assert lines[-1].strip() == "… 39 more: 9 waiting, 30 done  q leaves it running"
    assert sum("run 120/200 (median 12.5 ms)" in line for line in lines) == 3, "the phase has room at 80"


def test_long_names_leave_room_for_how_it_stands() -> None:
    long = dataclasses.replace(CAMPAIGN, name="n" * 64)
    task = changed(model="模型" * 40, device="d" * 64, unit="u" * 64)
    for width in (60, 80, 120, 200):
        out = io.StringIO()
        Console(file=out, width=width, color_system=None).print(
            render(long, [task], 114.0, width=width, height=10, hint="q")
        )
        lines = out.getvalue().splitlines()
        assert len(lines) == 4
        assert all(cell_len(line) <= width for line in lines)
        assert "0 of 1 done  0:14" in lines[0]
        assert "run 120/200" in lines[2]


def test_what_tells_tasks_of_one_model_apart_has_room_at_80() -> None:
    task = changed(unit=Configuration(2, 8).on("CPU (ONNX)"))
    out = io.StringIO()
    Console(file=out, width=80, color_system=None).print(
        render(CAMPAIGN, [task], 114.0, width=80, height=10, hint="q")
    )
    line = out.getvalue().splitlines()[2]
    assert "CPU (ONNX) ×2, batch 8 " in line
    assert "run 120/200" in line


def test_who_watches_reads_threads_and_batch(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    (tmp_path / "m.json").write_text('{"latencies_ms": [1]}')
    file.write_text(
        "campaign: c\nmodels: [m.json]\nunits: [Fake (Simulation)]\ndevices: {spread: any}\n"
        "measure: {threads: [physical, 2], batch: [1, 8]}\n"
    )
    home = Home.at(tmp_path / "home")
    campaign = submit_campaign(home, file, wait_s=1.0)
    out = io.StringIO()

    def leave(_: float) -> None:
        raise KeyboardInterrupt

    with Store(home.store) as store, pytest.raises(KeyboardInterrupt):
        watch(store, campaign, Console(file=out, width=200), keep_alive=lambda: None, pause=leave)
    messages = [line.split(" × ")[1].partition(": ")[0] for line in out.getvalue().splitlines()]
    assert messages == [
        "Fake (Simulation), batch 1",
        "Fake (Simulation), batch 8",
        "Fake (Simulation) ×2, batch 1",
        "Fake (Simulation) ×2, batch 8",
    ]


def test_a_pipe_reads_words_for_people() -> None:
    out = io.StringIO()
    lines = _Lines(Console(file=out, width=80))
    for state in (TaskState.COMMITTING, TaskState.LEASED):
        lines.update([changed(state=state, phase=None)])
    assert [line.rpartition(": ")[2] for line in out.getvalue().splitlines()] == ["asking", "leased"]


def test_a_device_that_is_gone_is_shown_by_name_and_without_addresses() -> None:
    gone = WorkerView(peer=TASK.worker or "", device="bench-1", unreachable=1, why="no way to 12D3KooW…")
    full = WorkerView(peer="12D3KooWother", device="bench-2", why="busy")
    assert why_waiting([gone]) == "bench-1 is gone; waiting for a device"
    assert why_waiting([gone, full]) == "bench-2: busy; bench-1 is gone"
    assert why_waiting([WorkerView(peer="12D3KooWother")]) == ""


def test_a_pipe_gets_a_line_for_each_phase_and_no_escape_codes() -> None:
    out = io.StringIO()
    lines = _Lines(Console(file=out, width=80))
    for step in (
        changed(state=TaskState.PENDING, device=""),
        changed(phase=Phase.RUN, done=1),
        changed(phase=Phase.RUN, done=2),
        changed(state=TaskState.FAILED, detail="no \x1b]52;;x\x07 such thing", model="[bold]evil[/x]"),
    ):
        lines.update([step])
    result = out.getvalue().splitlines()
    assert len(result) == 3
    assert result[1].endswith("on laptop-7: run")
    assert "[bold]evil[/x]" in result[2]
    assert "\x1b" not in out.getvalue()


def test_a_pipe_hears_of_each_phase_once_an_attempt_however_many_launches_there_are() -> None:
    out = io.StringIO()
    lines = _Lines(Console(file=out, width=80))
    for attempt in (1, 2):
        lines.update([changed(state=TaskState.COMMITTING, phase=None, attempt=attempt)])
        for _ in range(6):
            for phase, total in ((Phase.PREPARE, 10), (Phase.LOAD, None), (Phase.RUN, 100)):
                lines.update([changed(phase=phase, total=total, attempt=attempt)])
    steps = [line.rpartition(": ")[2] for line in out.getvalue().splitlines()]
    once = ["asking", "waits for other work on the device to end, at most 10 s", "load", "run"]
    assert steps == [*once, *once]


@pytest.mark.parametrize(
    ("value", "text"), [(0.0123, "12.3 µs"), (12.54, "12.5 ms"), (999.4, "999 ms"), (2500.0, "2.5 s")]
)
def test_times_have_three_digits_that_mean_something(value: float, text: str) -> None:
    assert show_ms(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(14.9, "0:14"), (125, "2:05"), (3753, "1:02:33")])
def test_durations_read_like_a_clock(seconds: float, text: str) -> None:
    assert show_elapsed(seconds) == text


def test_a_task_that_succeeded_shows_what_it_measured() -> None:
    ended, out = changed(state=TaskState.SUCCEEDED, ended=9.0), io.StringIO()
    _Lines(Console(file=out, width=80)).update([ended], {ended.id: "12.5 ms ±2 %, noisy"})
    assert out.getvalue().rstrip().endswith("on laptop-7: 12.5 ms ±2 %, noisy")
    screen = Console(file=io.StringIO(), width=80)
    screen.print(
        render(
            CAMPAIGN, [ended], 114.0, width=80, height=9, hint="q", outcomes={ended.id: "12.5 ms ±2 %, noisy"}
        )
    )
    assert "12.5 ms ±2 %, noisy" in screen.file.getvalue()  # type: ignore[attr-defined]


def test_a_median_has_half_its_interval() -> None:
    assert median_text(12.5, 12.25, 12.75) == "12.5 ms ±2 %"
    assert median_text(2500.0, None, None) == "2.5 s"
    assert median_text(None, None, None) == ""


def test_a_pipe_reads_each_step_forward_in_a_queue_once() -> None:
    out = io.StringIO()
    lines = _Lines(Console(file=out, width=80))
    for position, start_s in ((3, 40.0), (3, 35.0), (2, 30.0), (None, None)):
        lines.update([changed(state=TaskState.QUEUED, phase=None, position=position, start_s=start_s)])
    steps = [line.rpartition(": ")[2] for line in out.getvalue().splitlines()]
    assert steps == ["queued 3rd", "queued 2nd", "queued"]


@pytest.mark.parametrize(
    ("counts", "after_s", "shown"),
    [
        ({}, 4.0, False),
        ({}, 6.0, True),
        ({TaskState.PENDING: 3}, 6.0, True),
        ({TaskState.PENDING: 2, TaskState.QUEUED: 1}, 6.0, False),
        ({TaskState.PENDING: 2, TaskState.SUCCEEDED: 1}, 6.0, False),
    ],
)
def test_who_watches_a_campaign_that_no_device_takes_sees_how_to_learn_why(
    counts: dict[TaskState, int], after_s: float, shown: bool
) -> None:
    standing = Standing(counts)
    line = waiting_line(CAMPAIGN, standing, CAMPAIGN.created + after_s)
    assert line == (f"No device has taken a task yet. Why: sark-node explain {CAMPAIGN.id}" if shown else "")
    assert waiting_line(dataclasses.replace(CAMPAIGN, ended=1.0), standing, CAMPAIGN.created + after_s) == ""
