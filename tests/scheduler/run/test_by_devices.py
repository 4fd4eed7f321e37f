"""A model for which a campaign gives URL, sha256 and size: it is neither fetched nor needed here, as each device fetches it itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import CampaignError
from protocol.formats.reference_model import NAME, reference_model, reference_sha256
from protocol.values.attempt import TaskEvent
from protocol.values.task import Model, Task, read_task
from protocol.words import Reason
from scheduler.adoption.adopt import bring_models
from scheduler.campaign.load import parse_campaign
from scheduler.campaign.model import ModelEntry
from scheduler.core.commands import EndPending
from scheduler.core.entries import TaskEntry
from scheduler.models.describe import by_devices, describe_models, model_notes, no_fetch
from scheduler.models.spool import is_spooled
from scheduler.planning.tasks import LARGE_MODEL, derive_cells, tasks_of
from scheduler.run.models import MissingModels
from scheduler.store.store import Store
from scheduler.submit.submit import retry_campaign, submit_campaign
from swarm.base.home import Home

SHA = "ab" * 32
URL = "https://models.example.org/m.onnx"
SIZE = 3 * 1024**3


def text(**model: object) -> bytes:
    made = {
        "campaign": "t",
        "units": ["CPU (ONNX)"],
        "devices": {"spread": "any"},
        "models": [{"url": URL, "sha256": SHA, **model}],
    }
    return json.dumps(made).encode()


def plain(**more: object) -> bytes:
    made = {"model_url": URL, "model_sha256": SHA, "jobs": [{"compute_unit": "CPU (ONNX)"}], **more}
    return json.dumps(made).encode()


def task_of(data: bytes) -> Task:
    campaign = parse_campaign(data, "c.json")
    models = describe_models(campaign, Path(), no_fetch)
    (task,) = tasks_of(derive_cells(campaign, models, campaign_id="c-x", scheduler="1" * 44))
    return task


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path / "home")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "c.json"
    path.write_bytes(text(size=SIZE))
    return path


@pytest.mark.parametrize("data", [text(size=SIZE), plain(model_size=SIZE)])
def test_the_task_says_what_the_campaign_says_and_its_memory_follows_from_the_size(data: bytes) -> None:
    task = task_of(data)
    assert (task.model.sha256, task.model.size, task.model_url) == (SHA, SIZE, URL)
    assert SIZE > LARGE_MODEL
    assert f"ram >= {2 * SIZE}" in [f"{c.attribute} {c.op} {c.value}" for c in task.requirement.clauses]
    assert task.memory >= 4 * SIZE


def test_a_file_at_hugging_face_is_fetched_by_https() -> None:
    task = task_of(text(url="hf://a/b/m.onnx@v1", size=SIZE))
    assert task.model_url == "https://huggingface.co/a/b/resolve/v1/m.onnx"


@pytest.mark.parametrize(
    "data",
    [
        text(size=SIZE, sha256=None),
        text(size=SIZE, path="m.onnx"),
        text(size=SIZE, url="file:///m.onnx"),
        plain(model_size=SIZE, model_sha256=None),
        plain(model_size=SIZE, model_url="m.onnx"),
    ],
)
def test_a_size_without_the_rest_is_refused_with_a_hint(data: bytes) -> None:
    with pytest.raises(CampaignError, match="size requires url") as error:
        parse_campaign(data, "c.json")
    assert "remove size" in error.value.hint


@pytest.mark.parametrize("size", [0, -1, 2**60, "3 GiB"])
def test_a_size_is_a_number_of_bytes(size: object) -> None:
    with pytest.raises(CampaignError):
        parse_campaign(text(size=size), "c.json")


def test_a_plain_campaign_may_say_the_hash_alone_and_is_fetched_here() -> None:
    model = parse_campaign(plain(), "c.json").models[0]
    assert (model.sha256, model.by_devices) == (SHA, False)


def test_submitting_it_fetches_and_copies_nothing(home: Home, file: Path) -> None:
    def never(entry: ModelEntry) -> Path:
        raise AssertionError(entry)

    result = submit_campaign(home, file, wait_s=60, fetch=never)
    assert not home.spool.exists()
    with Store(home.store) as store:
        (model,) = store.campaigns.models(result)
        assert (model.sha256, model.size) == (SHA, SIZE)
        row = store.campaigns.get(result)
        assert row is not None
        assert by_devices(row.spec) == {SHA}


@pytest.mark.parametrize(
    ("url", "shown", "hidden"),
    [
        (URL, "each device fetches it from its URL", "yours"),
        ("http://nas:8080/m.onnx", "each of your own devices, and no other", "nas"),
        ("https://nas.lan/m.onnx", "each of your own devices, and no other", "8080"),
        (f"{URL}?key=s3cret", "each device fetches it from its URL", "s3cret"),
    ],
)
def test_what_cannot_be_known_here_is_noted(url: str, shown: str, hidden: str) -> None:
    (note,) = model_notes(parse_campaign(text(url=url, size=SIZE), "c.json"))
    assert "model 'm.onnx' is not checked here" in note
    assert shown in note
    assert "Only there does it turn out whether it is a model, and whether sha256 and size are right" in note
    assert hidden not in note
    assert model_notes(parse_campaign(text(url=url), "c.json")) == ()


def test_its_tasks_do_not_wait_for_a_model_here(tmp_path: Path) -> None:
    spec = parse_campaign(text(size=SIZE), "c.json").model_dump_json()
    missing_models = MissingModels(tmp_path)
    entry, other = TaskEntry(task_of(text(size=SIZE))), TaskEntry(task_of(text(size=SIZE)))
    assert missing_models.mark([entry], by_devices(spec)) == ()
    assert not entry.model_missing
    assert len(missing_models.mark([other], by_devices("{}"))) == 1
    assert other.model_missing


def test_who_adopts_it_needs_no_model_either(tmp_path: Path) -> None:
    task = task_of(text(size=SIZE))
    values: Mapping[str, Any] = {"spool": tmp_path / "spool", "folder": tmp_path}
    spec = parse_campaign(text(size=SIZE), "c.json").model_dump_json()
    assert bring_models([task], spec, **values) == ()
    other = parse_campaign(text(), "c.json").model_dump_json()
    assert [model.name for model in bring_models([task], other, **values)] == ["m.onnx"]


def test_who_adopts_a_comparison_with_the_reference_model_has_that_of_the_program(tmp_path: Path) -> None:
    task = task_of(text(size=SIZE))
    own = Model(name=NAME, sha256=reference_sha256(), size=len(reference_model()))
    beside = task.model_copy(update={"beside": (own,)})
    spec = parse_campaign(text(size=SIZE), "c.json").model_dump_json()
    assert bring_models([beside], spec, tmp_path / "spool", None) == ()
    assert is_spooled(own, tmp_path / "spool")


def test_what_failed_is_tried_again_without_it(home: Home, file: Path, tmp_path: Path) -> None:
    old = submit_campaign(home, file, wait_s=60)
    with Store(home.store) as store:
        store.attempts.end_pending(EndPending([f"{old}/1"], TaskEvent.FAIL, reason=Reason.NOTHING_FITS))
        store.campaigns.end(old)
        new, count = retry_campaign(home, store, old, tmp_path)
        assert count == 1
        (task,) = [read_task(body) for body in store.tasks.bodies(new).values()]
        assert (task.model_url, task.model.sha256) == (URL, SHA)
