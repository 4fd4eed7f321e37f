"""A cell that seems slower is measured again before anybody is told: beside the last good model, or once more if the model is the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from protocol.values.attempt import TaskEvent
from protocol.values.lease import Fence
from protocol.values.record import Record, pack_samples, record_body
from protocol.values.requirement import Requirement
from protocol.values.rounds import RoundsSample
from protocol.values.sitting import Sitting
from protocol.values.task import Measure, Model, Task, Timeouts, read_task
from protocol.words import Reason
from results.analysis.regression import RegressionCell, RegressionFinding, confirming
from scheduler.campaign.load import parse_campaign
from scheduler.core.commands import CommitTo, EndPending, RecordGrant
from scheduler.core.run_times import longest_run_s
from scheduler.experiments.confirm import (
    BACK_S,
    begin_confirmations,
    confirmation_of,
    good_models,
    limit_s,
    settle_confirmations,
)
from scheduler.experiments.judge import alarm_lines, judge_ended, read_cells
from scheduler.models.spool import KEEP_S, tidy
from scheduler.store.experiments import DUE
from scheduler.store.rows import NewCampaign, NewModel, RunClaim, RunRow, VersionModel
from scheduler.store.store import Store
from swarm.base.home import Home
from swarm.net.identity import load_or_create
from tests.scheduler.report_parts import MIB, WORKERS, a_record

OLD, NEW = "a" * 64, "b" * 64
UNIT = "CPU (ONNX)"
SPEC = parse_campaign(f"campaign: t\nmodels: [m.onnx]\nunits: [{UNIT}]\n".encode(), "c.yaml").spec()


@dataclass
class Nights:
    """An experiment that runs every night on one device."""

    home: Home
    store: Store
    fences: int = 0
    runs: list[str] = field(default_factory=list)

    def night(
        self,
        sha256: str,
        ms: float,
        peak: int = 80 * MIB,
        *,
        launches: Sequence[Sequence[int]] | None = None,
        **changes: Any,
    ) -> RunRow:
        """One run of one task, judged. `peak`: bytes of each launch; `launches`: their times, if not about `ms`; `changes`: fields of the
        task.
        """
        name = f"c-night{len(self.runs)}"
        self.runs.append(name)
        model = Model(name="m.onnx", sha256=sha256, size=3)
        task = Task(
            campaign=name,
            task=f"{name}/1",
            scheduler=WORKERS[3].peer_id,
            model=model,
            unit=UNIT,
            requirement=Requirement(),
            measure=Measure(threads=4),
            sitting=Sitting(number=2, of=2, step=1, apart_s=60.0),
            timeouts=Timeouts(),
        ).model_copy(update=changes)
        new = NewCampaign(name, "nightly", WORKERS[3].peer_id, SPEC)
        self.store.campaigns.create(
            new, [NewModel("m.onnx", sha256, 3)], [task], claim=RunClaim("nightly", 1, None, None)
        )
        self.home.spool.mkdir(parents=True, exist_ok=True)
        (self.home.spool / sha256).write_bytes(b"abc")
        record = a_record(task, ms=ms, launches=launches, seed=len(self.runs))
        timings = tuple(each.model_copy(update={"peak": peak}) for each in record.timings)
        self.finish(task, record.model_copy(update={"timings": timings, **beside_in(task, record)}))
        judge_ended(self.store)
        return self.run()

    def finish(self, task: Task, record: Record) -> None:
        self.fences += 1
        fence, worker = Fence(incarnation=1, number=self.fences), record.worker
        self.store.attempts.begin([CommitTo(task.task, 1, f"k{self.fences}", worker, "d", 1)])
        self.store.attempts.record_grant(
            RecordGrant(task.task, 1, lease=f"l{self.fences}", fence=fence, queued=False)
        )
        self.store.attempts.record_result(
            task=task.task, attempt=1, fence=fence, worker=worker, sha256="ab" * 32, body=record_body(record),
            signature=b"s" * 64, event=TaskEvent.SUCCEED,
        )  # fmt: skip
        self.store.campaigns.end(task.campaign)

    def run(self) -> RunRow:
        found = self.store.experiments.run(self.runs[-1])
        assert found is not None
        return found

    def again(self) -> Task:
        """The only task that measures the latest run again."""
        (body,) = self.store.tasks.bodies(confirmation_of(self.runs[-1])).values()
        return read_task(body)


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    home = Home.at(tmp_path)
    load_or_create(home.key("scheduler"))
    store = Store(tmp_path / "store.db")
    store.experiments.save_version(
        "nightly", digest="d", spec=SPEC, models=[VersionModel("m.onnx", OLD, 3)], folder="", alarm=0.05
    )
    return Nights(home, store)


def beside_in(task: Task, record: Record) -> dict[str, Any]:
    """The part of a record of this task about the models beside its own, which are as quick."""
    if task.beside is None:
        return {}
    samples = [timing.samples for timing in record.timings]
    rounds = tuple(RoundsSample(wall=(each, each), cpu=None, per_block=(6, 6), turns=2) for each in samples)
    return {"rounds": rounds, "ran_beside": (record.ran,)}


def in_turns(task: Task, ratio: float, launches: int = 6, ms: float = 1.0) -> Record:
    """A record in which the new model took `ratio` times as long as the one beside it, in every round."""
    own: Sequence[int] = [round(1e6 * ms * ratio)] * 24
    rounds = RoundsSample(
        wall=(pack_samples([round(1e6 * ms)] * 24), pack_samples(own)), cpu=None, per_block=(6, 6), turns=2
    )
    record = a_record(task, launches=[own] * launches)
    changes: dict[str, Any] = {"rounds": (rounds,) * launches, "ran_beside": (record.ran,)}
    return record.model_copy(update=changes)


def test_a_slower_model_is_measured_beside_the_last_good_one_on_its_device_before_anybody_is_told(
    nights: Nights,
) -> None:
    assert nights.night(OLD, 10).finding == "fine"
    slower = nights.night(NEW, 13)
    assert (slower.finding, slower.hook) == ("confirming", "")
    assert begin_confirmations(nights.home, nights.store).started == [confirmation_of(slower.campaign)]
    assert begin_confirmations(nights.home, nights.store).started == [], "once is enough"
    task = nights.again()
    assert [model.sha256 for model in task.models()] == [NEW, OLD]
    assert task.sitting is None, "it waits for no other"
    again = nights.store.campaigns.get(task.campaign)
    assert again is not None
    assert (again.name, again.limit_s) == ("nightly again", BACK_S + longest_run_s(task))
    (seemed,) = read_cells(slower)
    (clause,) = task.requirement.clauses
    assert (clause.attribute, clause.value) == ("device", "dev-0")
    assert settle_confirmations(nights.store) == [], "it is not over"
    nights.finish(task, in_turns(task, 1.3))
    (told,) = settle_confirmations(nights.store)
    assert (told.finding, told.hook) == ("regression", DUE)
    (line,) = alarm_lines(told)
    assert "in turns with the last good model: wall time 1.300" in line
    (cell,) = read_cells(told)
    assert cell.ratio == pytest.approx(1.3)
    assert seemed.finding is cell.finding is RegressionFinding.SLOWER
    assert settle_confirmations(nights.store) == []


@pytest.mark.parametrize(("ratio", "finding"), [(1.0, "same"), (0.9, "faster")])
def test_what_is_not_slower_in_turns_was_the_host_and_nobody_is_woken(
    nights: Nights, ratio: float, finding: str
) -> None:
    nights.night(OLD, 10)
    nights.night(NEW, 13)
    begin_confirmations(nights.home, nights.store)
    nights.finish(nights.again(), in_turns(nights.again(), ratio))
    (settled,) = settle_confirmations(nights.store)
    assert (settled.finding, settled.hook) == ("fine", "")
    assert [cell.finding for cell in read_cells(settled)] == [finding]


def test_an_alarm_that_the_model_does_not_explain_stands_where_the_runtime_changed_too(
    nights: Nights,
) -> None:
    nights.night(OLD, 10)
    nights.night(NEW, 13)
    begin_confirmations(nights.home, nights.store)
    record = in_turns(nights.again(), 1.0)
    assert record.ran is not None
    ran = record.ran.model_copy(update={"runtime": "newer"})
    nights.finish(nights.again(), record.model_copy(update={"ran": ran}))
    (told,) = settle_confirmations(nights.store)
    assert (told.finding, told.hook) == ("regression", DUE)
    (cell,) = read_cells(told)
    assert f"last good model: same, but the runtime changed from {record.ran.runtime} to newer" in cell.why
    assert (cell.cleared, cell.ratio) == (False, pytest.approx(1.3, rel=0.05))


def test_a_slowdown_below_the_alarm_is_no_regression(nights: Nights) -> None:
    nights.night(OLD, 10)
    nights.night(NEW, 13)
    begin_confirmations(nights.home, nights.store)
    nights.finish(nights.again(), in_turns(nights.again(), 1.03))
    (settled,) = settle_confirmations(nights.store)
    assert settled.finding == "fine"
    assert [cell.finding for cell in read_cells(settled)] == ["unsure"]


@pytest.mark.parametrize(("ms", "finding", "hook"), [(13, "regression", DUE), (10, "fine", "")])
def test_the_same_model_that_became_slower_has_one_more_sitting(
    nights: Nights, ms: float, finding: str, hook: str
) -> None:
    nights.night(OLD, 10)
    assert nights.night(OLD, 13).finding == "confirming"
    begin_confirmations(nights.home, nights.store)
    task = nights.again()
    assert task.beside is None
    nights.finish(task, a_record(task, ms=ms, seed=9))
    (settled,) = settle_confirmations(nights.store)
    assert (settled.finding, settled.hook) == (finding, hook)


def test_an_alarm_that_cannot_be_confirmed_is_told_as_it_is(nights: Nights) -> None:
    nights.night(OLD, 10)
    nights.night(NEW, 13)
    (nights.home.spool / OLD).unlink()
    done = begin_confirmations(nights.home, nights.store)
    assert done.started == []
    (told,) = done.settled
    assert (told.finding, told.hook) == ("regression", DUE)
    assert "it could not be measured again" in alarm_lines(told)[0]


def test_a_device_that_does_not_come_back_keeps_the_alarm_and_says_why(nights: Nights) -> None:
    nights.night(OLD, 10)
    nights.night(NEW, 13)
    begin_confirmations(nights.home, nights.store)
    task = nights.again()
    nights.store.attempts.end_pending(EndPending([task.task], TaskEvent.FAIL, reason=Reason.NOTHING_FITS))
    nights.store.campaigns.end(task.campaign)
    (told,) = settle_confirmations(nights.store)
    assert (told.finding, told.hook) == ("regression", DUE)
    assert "it could not be measured again: " in alarm_lines(told)[0]


def test_the_last_good_model_stays_in_the_spool_and_older_ones_do_not(nights: Nights) -> None:
    nights.night("c" * 64, 10)
    nights.night(OLD, 10)
    nights.night(NEW, 13)
    assert good_models(nights.store) == {OLD}
    later = (nights.home.spool / OLD).stat().st_mtime + 2 * KEEP_S
    tidy(nights.home.spool, good_models(nights.store), wall=lambda: later)
    assert [path.name for path in nights.home.spool.iterdir()] == [OLD]


# -- doubtful results ------------------------------------------------------------------------------------------------------------------


def unsteady(ms: float) -> list[list[int]]:
    """Launches that disagree so much that nobody would believe their median."""
    return [[round(1e6 * ms * (1 + 0.1 * launch))] * 24 for launch in range(6)]


@pytest.mark.parametrize(
    ("ratio", "finding", "cell", "hook"),
    [(1.3, "regression", "slower", DUE), (1.0, "fine", "same", "")],
)
def test_a_night_that_the_host_left_doubtful_is_measured_again_beside_the_last_good_model(
    nights: Nights, ratio: float, finding: str, cell: str, hook: str
) -> None:
    good = nights.night(OLD, 10)
    doubtful = nights.night(NEW, 13, launches=unsteady(13))
    assert (doubtful.finding, doubtful.hook) == ("confirming", "")
    assert [(one.finding, one.verdict) for one in read_cells(doubtful)] == [("doubtful", "drift")]
    assert begin_confirmations(nights.home, nights.store).started
    task = nights.again()
    assert [model.sha256 for model in task.models()] == [NEW, OLD]
    nights.finish(task, in_turns(task, ratio))
    (settled,) = settle_confirmations(nights.store)
    assert (settled.finding, settled.hook) == (finding, hook)
    (one,) = read_cells(settled)
    assert (one.finding, one.verdict, one.against) == (cell, "drift", good.campaign)
    assert not one.good, "its own time is as doubtful as before"


def test_what_is_doubtful_twice_or_cannot_be_measured_again_stays_so_and_wakes_nobody(nights: Nights) -> None:
    nights.night(OLD, 10)
    nights.night(OLD, 13, launches=unsteady(13))
    begin_confirmations(nights.home, nights.store)
    task = nights.again()
    nights.finish(task, a_record(task, launches=unsteady(14)))
    (settled,) = settle_confirmations(nights.store)
    (cell,) = read_cells(settled)
    assert (settled.finding, settled.hook, cell.finding) == ("fine", "", "doubtful")
    assert "measured once more: " in cell.why
    assert not cell.cleared, "it is no surer that the host was to blame"
    nights.night(NEW, 13, launches=unsteady(13))
    (nights.home.spool / OLD).unlink()
    (settled,) = begin_confirmations(nights.home, nights.store).settled
    (cell,) = read_cells(settled)
    assert (settled.finding, cell.finding) == ("fine", "doubtful")
    assert "it could not be measured again" in cell.why


def test_a_doubtful_night_without_a_good_one_before_it_is_not_measured_again(nights: Nights) -> None:
    assert nights.night(OLD, 10, launches=unsteady(10)).finding == "fine"


@pytest.mark.parametrize(
    ("finding", "verdict", "against", "unsettled"),
    [
        ("slower", "valid", OLD, True),
        ("doubtful", "busy-host", OLD, True),
        ("doubtful", "busy-host", "", False),
        ("doubtful", "unchecked", OLD, False),
        ("unsure", "valid", OLD, False),
    ],
)
def test_only_what_another_hour_may_tell_is_measured_again(
    finding: str, verdict: str, against: str, unsettled: bool
) -> None:
    assert a_cell(finding, verdict, against).unsettled is unsettled


def test_a_doubtful_cell_delays_no_alarm_that_is_sure() -> None:
    doubtful, failed, slower = a_cell("doubtful", "noisy"), a_cell("failed"), a_cell("slower")
    assert confirming([doubtful, a_cell("same")])
    assert not confirming([doubtful, failed])
    assert confirming([doubtful, failed, slower])
    assert not confirming([a_cell("same")])


def a_cell(finding: str, verdict: str = "valid", against: str = OLD) -> RegressionCell:
    return RegressionCell(
        key="k",
        model="m",
        unit=UNIT,
        device="d",
        status="Complete",
        verdict=verdict,
        finding=RegressionFinding(finding),
        against_sha256=against,
    )


# -- cleared results --------------------------------------------------------------------------------------------------------------------


def test_a_slow_night_that_was_the_hosts_is_no_base_for_the_next(nights: Nights) -> None:
    first = nights.night(OLD, 10)
    busy = nights.night(NEW, 13)
    begin_confirmations(nights.home, nights.store)
    nights.finish(nights.again(), in_turns(nights.again(), 1.0))
    settle_confirmations(nights.store)
    nights.store.experiments.accept_run(busy.campaign)
    again = nights.night(NEW, 13)
    assert again.finding == "confirming", "the model is slower now"
    assert [cell.against for cell in read_cells(again)] == [first.campaign]
    assert good_models(nights.store) == {OLD}


@pytest.mark.parametrize("sha256", [OLD, NEW])
def test_more_memory_is_told_though_the_time_was_the_hosts(nights: Nights, sha256: str) -> None:
    nights.night(OLD, 10)
    nights.night(sha256, 13, peak=100 * MIB)
    begin_confirmations(nights.home, nights.store)
    task = nights.again()
    nights.finish(task, in_turns(task, 1.0) if task.beside else a_record(task, ms=10, seed=9))
    (told,) = settle_confirmations(nights.store)
    (cell,) = read_cells(told)
    assert (told.finding, told.hook, cell.finding) == ("regression", DUE, "more-memory")
    assert "peak memory rose by 20.0 MB" in alarm_lines(told)[0]


# -- measuring again --------------------------------------------------------------------------------------------------------------------


def test_the_same_model_is_measured_again_beside_what_it_took_turns_with(nights: Nights) -> None:
    other = Model(name="reference", sha256="c" * 64, size=3)
    urls = {other.sha256: "https://example.org/r.onnx"}
    (nights.home.spool).mkdir(parents=True, exist_ok=True)
    (nights.home.spool / other.sha256).write_bytes(b"abc")
    beside: dict[str, Any] = {"beside": (other,), "beside_urls": urls}
    nights.night(OLD, 10, **beside)
    assert nights.night(OLD, 13, **beside).finding == "confirming"
    begin_confirmations(nights.home, nights.store)
    task = nights.again()
    assert (task.beside, task.beside_urls) == ((other,), urls)
    nights.finish(task, in_turns(task, 1.3, ms=10.0))
    (told,) = settle_confirmations(nights.store)
    assert told.finding == "regression", "by its own time, and not by that of the model beside it"
    assert "measured once more" in alarm_lines(told)[0]


def test_a_model_that_is_evaluated_is_confirmed_by_its_times_alone(nights: Nights) -> None:
    examples = Model(name="m.onnx.examples", sha256="e" * 64, size=3)
    nights.night(OLD, 10, examples=examples)
    assert nights.night(NEW, 13, examples=examples).finding == "confirming"
    begin_confirmations(nights.home, nights.store)
    task = nights.again()
    assert task.beside is not None
    assert task.examples is None, "models that take turns answer none"


def test_a_model_beside_that_is_gone_leaves_the_alarm(nights: Nights) -> None:
    beside: dict[str, Any] = {"beside": (Model(name="reference", sha256="c" * 64, size=3),)}
    nights.night(OLD, 10, **beside)
    nights.night(OLD, 13, **beside)
    (told,) = begin_confirmations(nights.home, nights.store).settled
    assert told.finding == "regression"


@pytest.mark.parametrize(
    "changes", [{"unit": "API (OpenAI)"}, {"measure": Measure(threads=4, sustain_s=600.0)}]
)
def test_another_model_that_cannot_take_turns_keeps_its_alarm(nights: Nights, changes: Any) -> None:
    nights.night(OLD, 10, **changes)
    nights.night(NEW, 13, **changes)
    (told,) = begin_confirmations(nights.home, nights.store).settled
    assert told.finding == "regression"


def test_a_model_takes_turns_without_the_pauses_that_it_was_measured_with(nights: Nights) -> None:
    changes: Any = {"measure": Measure(threads=4, over_s=600.0)}
    nights.night(OLD, 10, **changes)
    nights.night(NEW, 13, **changes)
    begin_confirmations(nights.home, nights.store)
    assert nights.again().measure == Measure(threads=4)


@pytest.mark.parametrize(("precision", "gaps_s"), [(None, 600.0), (0.02, 19 * 600.0 / 5)])
def test_nor_has_it_the_time_for_them(nights: Nights, precision: float | None, gaps_s: float) -> None:
    measure = Measure(over_s=600.0, precision=precision)
    changes: Any = {"measure": measure, "timeouts": Timeouts(run_s=900.0 + gaps_s)}
    nights.night(OLD, 10, **changes)
    nights.night(NEW, 13, **changes)
    begin_confirmations(nights.home, nights.store)
    assert nights.again().timeouts == Timeouts(run_s=900.0)


def test_the_limit_covers_all_that_one_device_measures_again(nights: Nights) -> None:
    nights.night(OLD, 10)
    nights.night(NEW, 13)
    begin_confirmations(nights.home, nights.store)
    task = nights.again()
    clause = task.requirement.clauses[-1].model_copy(update={"value": "dev-1"})
    elsewhere = task.model_copy(update={"requirement": Requirement(clauses=(clause,))})
    assert limit_s([task] * 40 + [elsewhere]) == BACK_S + 40 * longest_run_s(task)
