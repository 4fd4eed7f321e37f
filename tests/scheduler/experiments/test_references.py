"""An evaluated experiment: other labels make a new version, as another model does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from protocol.errors import CampaignError
from scheduler.experiments.service import begin, find_version, save
from scheduler.experiments.view import version_text, version_view
from scheduler.store.store import Store
from swarm.base.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path / "home")


def write(folder: Path, labels: list[int], scale: float = 1.0) -> Path:
    """A campaign whose model is evaluated on samples with these labels."""
    np.savez(folder / "d.npz", x=scale * np.ones((3, 1, 4), np.float32), labels=np.array(labels))
    (folder / "m.json").write_text("{}")
    path = folder / "campaign.yaml"
    path.write_text(
        "campaign: nightly\nunits: ['Fake (Simulation)']\n"
        "models: [{path: m.json, evaluate: {task: classification, data: d.npz}}]\n"
    )
    return path


def test_other_labels_make_another_version_and_the_difference_shows(tmp_path: Path, home: Home) -> None:
    with Store(home.store) as store:
        assert [save(store, write(tmp_path, [0, 1, 2]))[0].version for _ in range(2)] == [1, 1]
        assert save(store, write(tmp_path, [0, 1, 3]))[0].version == 2
        assert save(store, write(tmp_path, [0, 1, 3], scale=2.0))[0].version == 3
        texts = [
            version_text(find_version(store, f"nightly@{number}"), title=False).splitlines()
            for number in (1, 2, 3)
        ]
        (difference,) = set(texts[1]) - set(texts[0])
        assert "# model m.json: examples" in difference
        assert difference.partition(", references ")[0] in "\n".join(texts[0]), "the inputs are the same"
        views = [version_view(find_version(store, f"nightly@{number}")) for number in (1, 2)]
        assert views[0].digest != views[1].digest


def test_a_run_after_the_labels_changed_is_one_of_another_version(tmp_path: Path, home: Home) -> None:
    with Store(home.store) as store:
        save(store, write(tmp_path, [0, 1, 2]))
        write(tmp_path, [0, 1, 3])
        with pytest.raises(
            CampaignError, match=r"nightly@1: the references for the evaluation of model 'm\.json'"
        ):
            begin(home, store, "nightly@1")
        started = begin(home, store, "nightly")
        assert started is not None
        assert started[1].title == "nightly@2"
        assert [run.version for run in store.experiments.runs("nightly")] == [2]
        write(tmp_path, [0, 1, 2])
        assert begin(home, store, "nightly@1") is not None


def test_what_was_saved_without_a_hash_of_its_references_runs(tmp_path: Path, home: Home) -> None:
    with Store(home.store) as store:
        version, _ = save(store, write(tmp_path, [0, 1, 2]))
        models = [replace(model, references_sha256="") for model in version.models]
        store.experiments.save_version(
            "old", digest="an older one", spec=version.spec, models=models, folder=version.folder, alarm=0.05
        )
        started = begin(home, store, "old@1")
        assert started is not None
        assert started[1].version == 1
