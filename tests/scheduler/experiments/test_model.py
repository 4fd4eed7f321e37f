"""Experiments without a swarm: versions, when they are due under clocks that jump, one start among many processes, and alarms."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.errors import CampaignError
from results.analysis.regression import (
    CellOutcome,
    KnownGood,
    RegressionCell,
    RegressionFinding,
    judge,
    key_of,
    more_memory,
)
from results.export.raw import ResultEntry
from results.row.row import Row, RowStatus
from scheduler.campaign.load import load_campaign, parse_campaign
from scheduler.campaign.model import Campaign, Schedule
from scheduler.campaign.text import campaign_text, read_spec
from scheduler.cli.experiments import show_history
from scheduler.experiments.service import (
    begin,
    begin_due,
    find_version,
    first_due,
    is_due,
    is_too_far,
    next_due,
    parse_title,
    save,
    set_schedule,
)
from scheduler.experiments.view import CellHistory, History, HistoryPoint, experiment_view, history_view
from scheduler.store.rows import ExperimentRow
from scheduler.store.store import Store
from scheduler.trust.identities import DisputedDevice
from swarm.base.home import Home
from swarm.base.units import DAY_S

HOUR_S = 3600.0
START = 1_790_000_000.0
MB = 1024**2


class Clock:
    """Wall time that jumps on request."""

    def __init__(self, now: float = START) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


# -- schedules -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every_s", "at_s", "now", "due"),
    [
        (DAY_S, None, START, START),
        (DAY_S, 3 * HOUR_S, 10 * DAY_S, 10 * DAY_S + 3 * HOUR_S),
        (DAY_S, 3 * HOUR_S, 10 * DAY_S + 3 * HOUR_S, 11 * DAY_S + 3 * HOUR_S),
        (DAY_S, 3 * HOUR_S, 10 * DAY_S + 23 * HOUR_S, 11 * DAY_S + 3 * HOUR_S),
        (6 * HOUR_S, 3 * HOUR_S, 10 * DAY_S + 10 * HOUR_S, 10 * DAY_S + 15 * HOUR_S),
        (7 * DAY_S, 3 * HOUR_S, 10 * DAY_S + 4 * HOUR_S, 11 * DAY_S + 3 * HOUR_S),
    ],
    ids=["at once", "today", "this very instant is over", "tomorrow", "several a day", "weekly"],
)
def test_a_schedule_runs_first(every_s: float, at_s: float | None, now: float, due: float) -> None:
    assert first_due(every_s, at_s, now) == due


@pytest.mark.parametrize(
    ("late_s", "then_s"),
    [(0.0, DAY_S), (1.0, DAY_S), (DAY_S, 2 * DAY_S), (3.5 * DAY_S, 4 * DAY_S), (1000 * DAY_S, 1001 * DAY_S)],
)
def test_what_was_missed_is_made_up_for_once(late_s: float, then_s: float) -> None:
    assert next_due(START, DAY_S, START + late_s) == START + then_s


def test_the_next_instant_is_always_ahead_and_never_further_than_one_step() -> None:
    chance = random.Random(7)
    for _ in range(2000):
        every, due, now = chance.uniform(0.001, 3e6), chance.uniform(0, 2e9), chance.uniform(0, 2e9)
        if now >= due:
            assert now < next_due(due, every, now) <= now + every * 1.001


def row(due: float | None, every_s: float | None = DAY_S, at_s: float | None = None) -> ExperimentRow:
    return ExperimentRow("x", START, every_s, at_s, 0.01, "", "", due)


def test_a_clock_that_was_ahead_leaves_no_run_in_the_far_future() -> None:
    assert is_too_far(row(START + 300 * DAY_S), START)
    assert not is_too_far(row(START + DAY_S), START)
    assert not is_too_far(row(START + DAY_S, HOUR_S, 0.0), START)
    assert not is_too_far(row(START - 300 * DAY_S), START)
    assert is_due(row(START - 300 * DAY_S), START)
    assert not is_due(row(None), START)
    assert not is_due(row(START, None), START)


@pytest.mark.parametrize(
    "text", ["", "@1", "a@", "a@x", "a@-1", "a@1@2", "-a", "a\x1b[2J", "a\u202eb", "a" * 65, "a@" + "9" * 20]
)
def test_what_names_no_experiment_is_refused_in_a_line(text: str) -> None:
    with pytest.raises(CampaignError) as caught:
        parse_title(text)
    assert caught.value.what.isprintable()


# -- versions --------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path / "home")


def write(folder: Path, model: str = '{"latencies_ms": [1]}', **more: object) -> Path:
    (folder / "m.json").write_text(model)
    file = folder / "campaign.yaml"
    content = {"campaign": "nightly", "models": ["m.json"], "units": ["Fake (Simulation)"], **more}
    file.write_text(json.dumps(content))
    return file


def test_the_same_content_is_the_same_version_and_another_model_or_setting_a_new_one(
    tmp_path: Path, home: Home, clock: Clock
) -> None:
    with Store(home.store, wall=clock) as store:
        assert [save(store, write(tmp_path), now=clock.now)[0].version for _ in range(3)] == [1, 1, 1]
        (tmp_path / "campaign.yaml").write_text(
            "# a comment\ncampaign: nightly\nunits: ['Fake (Simulation)']\nmodels: [m.json]\n"
        )
        assert save(store, tmp_path / "campaign.yaml", now=clock.now)[0].version == 1
        assert save(store, write(tmp_path, schedule={"every": "1d"}), now=clock.now)[0].version == 1
        assert save(store, write(tmp_path, '{"latencies_ms": [2]}'), now=clock.now)[0].title == "nightly@2"
        assert save(store, write(tmp_path, priority=60), now=clock.now)[0].version == 3
        assert save(store, write(tmp_path), name="other", now=clock.now)[0].title == "other@1"
        views = [experiment_view(store, row) for row in store.experiments.all()]
        assert [item.name for item in views] == ["nightly", "other"]


def test_a_run_of_the_latest_takes_the_model_as_it_is_and_a_named_version_only_the_one_it_was(
    tmp_path: Path, home: Home, clock: Clock
) -> None:
    with Store(home.store, wall=clock) as store:
        save(store, write(tmp_path), now=clock.now)
        write(tmp_path, '{"latencies_ms": [3]}')
        with pytest.raises(CampaignError, match="has changed"):
            begin(home, store, "nightly@1")
        assert store.campaigns.summaries() == ()
        started = begin(home, store, "nightly")
        assert started is not None
        assert started[1].title == "nightly@2"
        assert [run.version for run in store.experiments.runs("nightly")] == [2]
        assert find_version(store, "nightly@1").version == 1
        with pytest.raises(CampaignError, match="no version 9"):
            find_version(store, "nightly@9")


def test_a_scheduled_run_begins_once_whoever_looks_and_none_while_one_is_under_way(
    tmp_path: Path, home: Home, clock: Clock
) -> None:
    with Store(home.store, wall=clock) as one, Store(home.store, wall=clock) as two:
        save(one, write(tmp_path, schedule={"every": "1d"}), now=clock.now)
        begun = begin_due(home, one, now=clock.now) + begin_due(home, two, now=clock.now)
        assert len(begun) == 1
        clock.now += 5 * DAY_S + 1  # the machine slept, and the run has not ended
        assert begin_due(home, one, now=clock.now) == []
        assert one.experiments.get("nightly") == replace(
            one.experiments.get("nightly") or row(None), due=START + 6 * DAY_S
        )


def test_two_processes_that_both_saw_it_due_store_one_campaign(
    tmp_path: Path, home: Home, clock: Clock
) -> None:
    with Store(home.store, wall=clock) as one, Store(home.store, wall=clock) as two:
        save(one, write(tmp_path, schedule={"every": "1d"}), now=clock.now)
        due = (START, START + DAY_S)
        assert begin(home, one, "nightly", due=due) is not None
        assert begin(home, two, "nightly", due=due) is None
        assert len(two.campaigns.summaries()) == len(two.experiments.runs("nightly")) == 1


def test_a_run_that_cannot_begin_stands_in_the_history_and_is_not_tried_again_at_once(
    tmp_path: Path, home: Home, clock: Clock
) -> None:
    with Store(home.store, wall=clock) as store:
        save(store, write(tmp_path, schedule={"every": "1d"}), now=clock.now)
        (tmp_path / "m.json").unlink()
        assert begin_due(home, store, now=clock.now) == []
        assert begin_due(home, store, now=clock.now + 1) == []
        (run,) = history_view(store, "nightly").runs
        assert run.finding == "not-started"
        assert "no such file" in run.why
        assert [item.campaign for item in store.experiments.take_hooks()] == [run.campaign]
        assert store.experiments.take_hooks() == ()
        clock.now += 601.0
        assert len(store.experiments.take_hooks()) == 1, "who took it was not heard of again"


def test_a_run_of_a_device_that_two_keys_claim_does_not_begin(
    tmp_path: Path, home: Home, clock: Clock
) -> None:
    def check(campaign: Campaign) -> None:
        raise DisputedDevice("d1", "one", "other").error()

    with Store(home.store, wall=clock) as store:
        save(store, write(tmp_path, schedule={"every": "1d"}), now=clock.now)
        with pytest.raises(CampaignError, match="two keys claim"):
            begin(home, store, "nightly", check=check)
        assert begin_due(home, store, now=clock.now, check=check) == []
        (run,) = history_view(store, "nightly").runs
        assert (run.finding, "two keys claim" in run.why) == ("not-started", True)
        assert store.campaigns.summaries() == ()


def test_a_schedule_that_is_saved_again_keeps_the_instant_that_is_due(
    tmp_path: Path, home: Home, clock: Clock
) -> None:
    with Store(home.store, wall=clock) as store:
        file = write(tmp_path, schedule={"every": "1d", "at": "03:00", "webhook": "https://example.org/h"})
        save(store, file, now=clock.now)
        before = store.experiments.get("nightly")
        save(store, file, now=clock.now + 2 * DAY_S)
        assert store.experiments.get("nightly") == before
        set_schedule(store, "nightly", None, now=clock.now)
        after = store.experiments.get("nightly")
        assert after is not None
        assert (after.every_s, after.due) == (None, None)


@pytest.mark.parametrize(
    "schedule",
    [
        {"at": "03:00"},
        {"every": "1d", "at": "24:00"},
        {"every": "1d", "at": 180},
        {"every": "1d", "webhook": "http://example.org/h"},
        {"every": "1d", "webhook": "ftp://example.org/h"},
        {"every": "1d", "alarm": 5},
        {"every": "1d", "else": 1},
    ],
    ids=[
        "no every",
        "no such hour",
        "a number",
        "not encrypted",
        "another scheme",
        "no percent sign",
        "unknown",
    ],
)
def test_a_wrong_schedule_is_reported_with_its_line(schedule: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(
        CampaignError, match=r"schedule|webhook|03:00|time of the day|alarm|percent|every|unknown"
    ):
        load_campaign(write(tmp_path, schedule=schedule))


@pytest.mark.parametrize(
    "url", ["https://10.0.0.1/x", "http://127.0.0.1:9/x", "http://localhost/x", "http://[::1]:8/"]
)
def test_a_webhook_may_be_of_the_owners_own_network_or_machine(url: str) -> None:
    assert Schedule.model_validate({"every": "1d", "webhook": url}).webhook == url


def test_what_devices_keep_of_a_campaign_says_nothing_of_its_webhook(tmp_path: Path) -> None:
    campaign = load_campaign(write(tmp_path, schedule={"every": "1d", "webhook": "https://example.org/key"}))
    assert "example.org" not in campaign.spec()


# -- export to a file ------------------------------------------------------------------------------------------------------------------

OURS = {
    "campaign": "all of it",
    "models": [
        "a.onnx",
        {
            "name": "b = 'x: #",
            "path": "dir/b.onnx",
            "dims": {"batch": 4},
            "inputs": {"x": "float32[batch, 3]"},
        },
        {"package": "magika", "path": "m.onnx"},
        {"url": "https://example.org/c.onnx", "sha256": "ab" * 32, "size": 9},
    ],
    "units": ["CPU (ONNX)", "GPU (ONNX)"],
    "devices": {"where": ["ram >= 8 GiB", "label.site == lab"], "spread": "class", "limit": 4},
    "measure": {
        "precision": "2%",
        "threads": [1, "physical"],
        "pre": [{"step": "normalise", "of": "x", "mean": 127.5, "std": 2.0}],
        "check": "none",
    },
    "timeouts": {"queue": "1h", "campaign": "2h"},
    "retry": {"attempts": 2, "backoff": "250ms"},
    "replicas": 2,
    "priority": 7,
}
PLAIN = {
    "campaign": "plain",
    "model_url": "m.onnx",
    "jobs": [
        {"compute_unit": "CPU (ONNX)", "num_inference_runs": 7, "device_udid": "d-1"},
        {"compute_unit": "GPU (ONNX)", "num_inference_runs": 8, "worker_id": "12D3KooWx"},
    ],
}


@pytest.mark.parametrize("content", [OURS, PLAIN], ids=["ours", "plain"])
def test_a_stored_campaign_becomes_a_file_that_says_the_same(content: dict[str, object]) -> None:
    before = parse_campaign(json.dumps(content).encode(), "x.json")
    text = campaign_text(read_spec(before.spec(), "x"), note="from x")
    assert parse_campaign(text.encode(), "x.yaml").spec() == before.spec()


def test_with_a_folder_its_paths_are_whole() -> None:
    before = parse_campaign(json.dumps(OURS).encode(), "x.json")
    after = parse_campaign(campaign_text(before, folder="/home/me").encode(), "x.yaml")
    assert [entry.path for entry in after.models] == [
        "/home/me/a.onnx",
        "/home/me/dir/b.onnx",
        "m.onnx",
        None,
    ]


# -- alarms ----------------------------------------------------------------------------------------------------------------------------


def measured(
    ms: float, *, seed: int = 0, peaks: tuple[int, ...] = (), noise: float = 0.002, **changes: object
) -> ResultEntry:
    chance = random.Random(seed)
    launches = tuple(
        tuple(int(ms * 1e6 * place * chance.lognormvariate(0, noise)) for _ in range(30))
        for place in (chance.lognormvariate(0, noise) for _ in range(8))
    )
    facts: dict[str, object] = {
        "status": RowStatus.COMPLETE,
        "job_id": "c-1/1",
        "file_name": "m.onnx",
        "file_size": 9,
        "compute_units": "CPU (ONNX)",
        "device_name": "mini",
        "device_id": "d-1",
        "shapes": "x 1x3",
        "inference_ms_median": ms,
        "inference_ms_median_low": 0.999 * ms,
        "inference_ms_median_high": 1.001 * ms,
        "verdict": "valid",
    }
    return ResultEntry(Row.model_validate(facts | changes), launches, peaks)


def beside(
    good: ResultEntry, found: ResultEntry, alarm: float = 0.01
) -> tuple[RegressionFinding, RegressionCell]:
    finding, (cell,) = judge([found], lambda row, key: KnownGood("c-0", good), alarm=alarm)
    return finding, cell


EIGHT = tuple(100 * MB + n * 4096 for n in range(8))
TABLE = [
    ("the same", measured(2.0, seed=2), RegressionFinding.SAME, RegressionFinding.FINE),
    ("faster", measured(1.5, seed=2), RegressionFinding.FASTER, RegressionFinding.FINE),
    ("slower", measured(2.2, seed=2), RegressionFinding.SLOWER, RegressionFinding.REGRESSION),
    ("slower by less than the alarm", measured(2.06, seed=2), RegressionFinding.UNSURE, RegressionFinding.FINE),
    ("slower, but noisy", measured(2.2, seed=2, verdict="noisy"), RegressionFinding.DOUBTFUL, RegressionFinding.FINE),
    ("other shapes", measured(2.2, seed=2, shapes="x 8x3"), RegressionFinding.UNSURE, RegressionFinding.FINE),
    ("more memory", measured(2.0, seed=2, peaks=tuple(n + 20 * MB for n in EIGHT)), RegressionFinding.MEMORY, RegressionFinding.REGRESSION),
    ("a little more memory", measured(2.0, seed=2, peaks=tuple(n + 3 * MB for n in EIGHT)), RegressionFinding.SAME, RegressionFinding.FINE),
    (
        "broken now",
        measured(2.0, status=RowStatus.FAILED, reason="crashed", inference_ms_median=None, verdict=""),
        RegressionFinding.FAILED,
        RegressionFinding.REGRESSION,
    ),
    (
        "its device was lost",
        measured(2.0, status=RowStatus.FAILED, reason="lost", inference_ms_median=None, verdict=""),
        RegressionFinding.ABSENT,
        RegressionFinding.INCOMPLETE,
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("found", "cell", "whole"), [case[1:] for case in TABLE], ids=[case[0] for case in TABLE]
)
def test_against_the_last_good_result(
    found: ResultEntry, cell: RegressionFinding, whole: RegressionFinding
) -> None:
    result, one = beside(measured(2.0, peaks=EIGHT), found, alarm=0.05)
    assert (one.finding, result) == (cell, whole), one.why


def test_noise_alone_raises_next_to_no_alarm() -> None:
    good = measured(2.0, seed=1, noise=0.02)
    alarms = sum(
        beside(good, measured(2.0, seed=seed, noise=0.02))[0] is RegressionFinding.REGRESSION
        for seed in range(100, 130)
    )
    assert alarms <= 1


def test_without_anything_before_a_valid_result_is_the_first_and_another_is_doubtful() -> None:
    for verdict, finding in (("valid", RegressionFinding.FIRST), ("busy-host", RegressionFinding.DOUBTFUL)):
        _, (cell,) = judge([measured(2.0, verdict=verdict)], lambda row, key: None)
        assert cell.finding is finding
        assert cell.good == (verdict == "valid")


def test_another_device_thread_count_or_shape_is_another_cell() -> None:
    one = measured(2.0).row
    changes: list[dict[str, object]] = [
        {"device_id": "d-2"},
        {"threads": 4},
        {"shapes": "x 8x3"},
        {"file_name": "n"},
        {"soc": "M9"},
    ]
    keys = {key_of(one.model_copy(update=change)) for change in changes}
    assert len(keys | {key_of(one)}) == 6
    assert key_of(
        one.model_copy(update={"model_sha256": "cd" * 32, "device_os": "newer", "runtime": "2"})
    ) == key_of(one)


def test_memory_needs_launches_on_both_sides() -> None:
    more = tuple(2 * n for n in EIGHT)
    assert "2.00 times" in more_memory(EIGHT, more)
    assert more_memory(EIGHT[:5], more) == more_memory((), more) == more_memory(EIGHT, ()) == ""


def test_hostile_names_do_no_harm_in_a_history(capsys: pytest.CaptureFixture[str]) -> None:
    bad = "[red]x[/]\x1b[2J\u202egnp.exe\u200b<img src=x>=1+1"
    _, (cell,) = judge(
        [measured(2.0, file_name=bad, device_name=bad, compute_units=bad)], lambda row, key: None
    )
    point = {name: getattr(cell, name) for name in CellOutcome.model_fields}
    points = (HistoryPoint(campaign="c-1", version=1, begun="2026-11-21T12:00:00+00:00", **point),)
    shown = CellHistory(model=bad, unit=bad, device=bad, device_id="d", simulated=True, points=points)
    show_history(History(experiment="e", count=1, total=1, runs=(), cells=(shown,)))
    result = capsys.readouterr().out
    assert not set(result) & {"\x1b", "\u202e", "\u200b"}
    assert "[red]x[/]" in result
    assert "[simulation]" in result
