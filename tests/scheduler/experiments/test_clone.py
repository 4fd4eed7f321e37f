"""A past campaign as a file again, with some keys changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocol.errors import CampaignError
from scheduler.campaign.load import parse_campaign
from scheduler.campaign.model import Campaign
from scheduler.experiments.clone import clone_text
from scheduler.experiments.service import begin, save
from scheduler.store.store import Store
from swarm.base.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with an experiment `nightly` and one run of it."""
    folder = tmp_path / "there"
    folder.mkdir()
    for name in ("m.json", "n.json"):
        (folder / name).write_text('{"latencies_ms": [1]}')
    content = {
        "campaign": "nightly",
        "models": ["m.json", {"name": "two", "path": "n.json"}],
        "units": ["Fake (Simulation)"],
        "measure": {"threads": [1, 2]},
    }
    (folder / "c.yaml").write_text(json.dumps(content))
    home = Home.at(tmp_path / "home")
    with Store(home.store) as store:
        save(store, folder / "c.yaml")
        assert begin(home, store, "nightly") is not None
    return home


def cloned(home: Home, source: str, *changes: str) -> Campaign:
    with Store(home.store) as store:
        return parse_campaign(clone_text(store, source, changes).encode(), "again.yaml")


def refused(home: Home, *changes: str) -> CampaignError:
    with pytest.raises(CampaignError) as caught:
        cloned(home, "nightly", *changes)
    return caught.value


@pytest.mark.parametrize(
    "source", ["nightly", "nightly@1", "", "c-"], ids=["latest", "version", "newest", "campaign"]
)
def test_a_clone_is_the_same_campaign_with_whole_paths(home: Home, source: str) -> None:
    result = cloned(home, source)
    assert (result.campaign, result.measure.threads) == ("nightly", (1, 2))
    assert [Path(entry.path or "").is_file() for entry in result.models] == [True, True]


@pytest.mark.parametrize("source", ["nightly@1", "c-"])
def test_keys_are_changed_on_the_way(home: Home, source: str) -> None:
    result = cloned(
        home,
        source,
        "campaign=other",
        "measure.batch=[1, 8]",
        "measure.threads=",
        "models.1.batch=[4]",
        "models.two.batch_dim=N",
        "devices.spread=class",
        "units=[CPU (ONNX)]",
    )
    assert (result.campaign, result.measure.batch, result.measure.threads) == ("other", (1, 8), ("physical",))
    assert [(entry.batch, entry.batch_dim) for entry in result.models] == [((4,), None), (None, "N")]
    assert (result.devices.spread, result.units) == ("class", ("CPU (ONNX)",))


@pytest.mark.parametrize("typed", ["on", "no", "'1e5'", "2020-01-01", "1:30", "0x1F"])
def test_a_value_is_read_as_in_a_campaign_file(home: Home, typed: str) -> None:
    result = cloned(home, "nightly", f"models.two.batch_dim={typed}")
    assert result.models[1].batch_dim == typed.strip("'")


def test_a_model_is_taken_out(home: Home) -> None:
    assert [entry.label for entry in cloned(home, "nightly", "models.1=").models] == ["two"]


def test_a_name_with_dots_is_a_model_s_and_all_its_variants_are_changed(home: Home, tmp_path: Path) -> None:
    content = {
        "campaign": "forms",
        "models": [
            "there/m.json",
            {"name": "v1.5", "variants": {"fp32": "there/m.json", "int8": "there/n.json"}},
        ],
        "units": ["Fake (Simulation)"],
    }
    (tmp_path / "forms.yaml").write_text(json.dumps(content))
    with Store(home.store) as store:
        save(store, tmp_path / "forms.yaml")
    result = cloned(home, "forms", "models.v1.5.batch=[4]", "models.m.json.batch=[2]")
    assert [entry.batch for entry in result.models] == [(2,), (4,), (4,)]
    result = cloned(home, "forms", "models.v1.5 int8.batch=[4]")
    assert [entry.batch for entry in result.models] == [None, None, (4,)]
    assert [entry.label for entry in cloned(home, "forms", "models.v1.5=").models] == ["m.json"]


def test_values_are_read_as_in_a_file_and_a_schedule_is_kept(home: Home) -> None:
    result = cloned(home, "nightly", "campaign=no", "schedule.every=1d", "schedule.at=12:30")
    assert result.campaign == "no"
    assert result.schedule is not None
    assert (result.schedule.every, result.schedule.at) == (86400.0, 45000.0)


def test_the_text_says_where_it_is_from_and_what_was_changed(home: Home) -> None:
    with Store(home.store) as store:
        plain, other = clone_text(store, "nightly"), clone_text(store, "nightly", ["measure.runs=7"])
    assert plain.startswith("# nightly@1, saved ")
    assert "# model m.json: " in plain
    assert "# Changed: measure.runs\n" in other


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("measure.batch", "'measure.batch' is not KEY=VALUE"),
        ("=1", "is not KEY=VALUE"),
        ("measure..runs=1", "is not KEY=VALUE"),
        ("measure.runs=[", "not valid YAML"),
        ("measure.runs=2020-99-99", "the changed campaign is invalid: measure.runs"),
        ("measure.runs=!!int x", "tags are not allowed"),
        ("models=" + "[" * 1500, "nested deeper than 32 levels"),
        ("models.9.batch=[1]", "the list of 2 has no item 9"),
        ("models.none.batch=[1]", "the list of 2 has no item none"),
        ("campaign.name=x", "the campaign has no such key"),
        ("measure.bach=[1]", "the changed campaign is invalid: unknown key 'bach'"),
        ("measure.batch=8", "the changed campaign is invalid: measure.batch must be a list"),
        ("measure.nothing=", "the campaign has no such key"),
    ],
)
def test_what_cannot_be_changed_is_refused(home: Home, change: str, what: str) -> None:
    error = refused(home, change)
    assert what in str(error)
    assert error.hint
