"""Answers are scored once their record is stored; only the end of the campaign waits for the scores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from protocol.formats.examples import Value, pack_examples
from protocol.values.answers import answer_set
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts
from results.row.row import Row
from results.scoring.account import EvaluationAccount
from results.scoring.scorer import Scorer
from scheduler.output.events import event_words
from scheduler.output.rescoring import rescore
from scheduler.store.progress import progress_text
from scheduler.store.readers import RowReader
from scheduler.store.rows import CampaignStatus, NewCampaign, NewModel
from scheduler.store.store import Store
from tests.plug_ins import install_package
from tests.scheduler.conftest import MODEL, SCHEDULER, SHA, UNIT

World = Any
"""`World` of conftest.py."""
ANSWERS = answer_set(
    pack_examples({"y": Value("float32", (1, 2), np.array([[0, 1]], "float32").tobytes())} for _ in range(2))
)
ACCOUNT = EvaluationAccount(title="digits", metrics=("accuracy", "mine"), references=(1, 0))
EXAMPLES = Model(name="tiny.onnx.examples", sha256="e" * 64, size=9)

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    folder = tmp_path / "packages"
    folder.mkdir()

    def put(score: str, *, limit_s: float = 60.0, version: str = "1.2") -> None:
        source = f"import os, time\nclass Mine:\n name = 'mine'\n limit_s = {limit_s}\n"
        source += f" def score(self, answers):\n  {score}\n"
        install_package(folder, monkeypatch, "mines", "mine = mines_module:Mine", source, version=version)

    return put


def submit(world: World, tasks: int = 1, campaign: str = "c-one") -> None:
    """Submit an evaluated campaign and add a worker that answers."""
    (world.spool / EXAMPLES.sha256).write_bytes(b"e" * EXAMPLES.size)
    worker = world.worker("mini")
    worker.outcome = lambda task: {"answers": ANSWERS} if task.examples is not None else {}
    with Store(world.store_path) as other:
        other.campaigns.create(
            NewCampaign(campaign, "one", SCHEDULER.peer_id, "{}"),
            [NewModel("e", "e" * 64, 9, facts=EXAMPLES.name, evaluation=ACCOUNT.model_dump_json())],
            [
                Task(
                    campaign=campaign,
                    task=f"{campaign}/{n}",
                    scheduler=SCHEDULER.peer_id,
                    model=Model(name="tiny.onnx", sha256=SHA, size=len(MODEL)),
                    unit=UNIT,
                    requirement=Requirement(),
                    measure=Measure(runs=1, loads=1),
                    timeouts=Timeouts(),
                    examples=EXAMPLES,
                )
                for n in range(1, tasks + 1)
            ],
        )


def rows(world: World) -> list[Row]:
    return RowReader(world.store, "c-one").rows(1, 99)


def events(world: World) -> list[str]:
    return [event_words(event) for event in world.store.events.since("c-one", 0)]


async def test_scores_follow_a_result_and_the_campaign_ends_with_them(world: World, install: Install) -> None:
    install("return {'mine': 0.25}")
    submit(world)
    with trio.fail_after(40):
        await world.run()
    (row,) = rows(world)
    assert (row.scores, row.scores_why, row.scored_by) == ("accuracy=0.5; mine=0.25", "", "mine=mines 1.2")
    assert "its answers score accuracy 0.5, mine 0.25" in events(world)
    assert world.task().note == ""
    assert world.store.campaigns.get("c-one").outcome is CampaignStatus.SUCCEEDED


async def test_a_metric_that_never_returns_ends_at_its_limit_and_the_row_says_so(
    world: World, install: Install
) -> None:
    install("time.sleep(1000)", limit_s=0.3)
    submit(world)
    with trio.fail_after(40):
        await world.run()
    (row,) = rows(world)
    assert row.scores == "accuracy=0.5"
    assert row.scores_why == "metric 'mine' of mines 1.2 did not answer within 0.3 s"
    assert world.store.campaigns.get("c-one").outcome is CampaignStatus.SUCCEEDED


async def test_other_campaigns_end_meanwhile_and_it_is_seen_what_is_waited_for(
    world: World, install: Install, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    install(f"\n  while not os.path.exists({str(gate)!r}): time.sleep(0.01)\n  return {{'mine': 1.0}}")
    submit(world)
    async with world.scheduler():
        await world.until(lambda: world.task().note != "")
        assert progress_text(world.task(), "12.5 ms") == "12.5 ms; its answers are being scored"
        (row,) = rows(world)
        assert (row.scores, row.scores_why) == ("", "its answers are not scored yet")
        world.submit(1, campaign="c-two")
        await world.until(lambda: world.store.campaigns.get("c-two").ended is not None)
        assert world.store.campaigns.get("c-one").ended is None
        gate.touch()
        await world.until(lambda: world.store.campaigns.get("c-one").ended is not None)
    (row,) = rows(world)
    assert row.scores == "accuracy=0.5; mine=1"


async def test_what_a_process_left_unscored_the_next_one_scores(
    world: World, install: Install, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    install(f"\n  while not os.path.exists({str(gate)!r}): time.sleep(0.01)\n  return {{'mine': 1.0}}")
    submit(world, 2)
    async with world.scheduler():
        await world.until(lambda: [world.task(n).note != "" for n in (1, 2)] == [True, True])
    world.new_process()
    assert world.store.campaigns.get("c-one").ended is None
    gate.touch()
    with trio.fail_after(40):
        await world.run()
    assert [row.scores for row in rows(world)] == ["accuracy=0.5; mine=1"] * 2
    assert world.store.campaigns.get("c-one").outcome is CampaignStatus.SUCCEEDED


async def test_a_campaign_that_is_cancelled_waits_for_no_metric(world: World, install: Install) -> None:
    install("time.sleep(1000)")
    submit(world, 2)
    async with world.scheduler():
        await world.until(lambda: [world.task(n).note != "" for n in (1, 2)] == [True, True])
        with Store(world.store_path) as other:
            other.campaigns.request_cancel("c-one")
        await world.until(lambda: world.store.campaigns.get("c-one").ended is not None)
    assert {row.scores_why for row in rows(world)} == {
        "the campaign was cancelled before its answers were scored; they are kept: sark-node score c-one"
    }


async def test_a_metric_that_was_mended_scores_the_stored_answers_and_alters_nothing_signed(
    world: World, install: Install
) -> None:
    install("return {'mine': 0.25}")
    submit(world, 2)
    with trio.fail_after(40):
        await world.run()
    signed = [world.store.scores.record(f"c-one/{n}", 1) for n in (1, 2)]
    with Scorer(check_steady=True) as scorer:
        assert [each.changed for each in rescore(world.store, "c-one", scorer)] == [False, False]
    install("return {'mine': 0.5}", version="1.3")
    with Scorer(check_steady=True) as scorer:
        made = list(rescore(world.store, "c-one", scorer))
    assert [each.words for each in made] == [
        f"task {n}: mine 0.25 → 0.5 (mine mines 1.2 → mines 1.3)" for n in (1, 2)
    ]
    assert {(row.scores, row.scored_by) for row in rows(world)} == {
        ("accuracy=0.5; mine=0.5", "mine=mines 1.3")
    }
    assert signed == [world.store.scores.record(f"c-one/{n}", 1) for n in (1, 2)]
    install("raise ValueError('there is no licence')", version="1.4")
    with Scorer() as scorer:
        (first, _) = list(rescore(world.store, "c-one", scorer))
    assert first.words == "task 1: unchanged: metric 'mine': there is no licence"
    assert {row.scores for row in rows(world)} == {"accuracy=0.5; mine=0.5"}


async def test_a_scheduler_that_stops_leaves_no_metric_behind(world: World, install: Install) -> None:
    install("time.sleep(1000)")
    submit(world)
    with trio.move_on_after(30) as waiting:
        async with world.scheduler():
            await world.until(lambda: world.task().note != "")
    assert not waiting.cancelled_caught
