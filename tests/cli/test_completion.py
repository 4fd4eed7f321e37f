"""What the shell completes on Tab: names from this home, quickly, and nothing where nothing can be read."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

import sark
from node.store import model_files
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts
from scheduler.store.rows import NewCampaign, NewModel
from scheduler.store.store import Store
from swarm.base.home import Home
from swarm.net.identity import Identity

PEER = Identity.from_seed("worker").peer_id


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with two campaigns, a device, an experiment and a stored model."""
    folder = tmp_path_factory.mktemp("home")
    here = Home.at(folder)
    here.store.parent.mkdir(parents=True)
    with Store(here.store) as store:
        for id_ in ("c-aaaa2222", "c-bbbb3333"):
            model = Model(name="mobilenet.onnx", sha256="a" * 64, size=3)
            tasks = [
                Task(
                    campaign=id_, task=f"{id_}/{n}", scheduler=PEER, model=model, unit="CPU (ONNX)",
                    requirement=Requirement(), measure=Measure(), timeouts=Timeouts(),
                )
                for n in (1, 2)
            ]  # fmt: skip
            new = NewCampaign(id_, f"name of {id_[2]}", PEER, "{}")
            store.campaigns.create(new, [NewModel("mobilenet.onnx", "a" * 64, 3)], tasks)
        store.workers.save(PEER, "lab 1", ())
        store.workers.save(Identity.from_seed("rude").peer_id, "lab\x1b[2J", ())
        for spec in ("{}", '{"a": 1}'):
            store.experiments.save_version(
                "nightly", digest=spec, spec=spec, models=(), folder="/", alarm=0.01
            )
    models = here.cache / "models"
    models.mkdir(parents=True)
    (folder / "net.onnx").write_bytes(b"net")
    model_files.add(models, folder / "net.onnx", room=1 << 30)
    return folder


def offered(home: Path, line: str, *, of: str = "fish") -> list[str]:
    """The completions of the last word of `sark-node LINE`."""
    words = f"sark-node --home {home} {line}"
    result = {
        "fish": {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        "bash": {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))},
    }[of]
    done = CliRunner().invoke(
        sark.app, [], env={"_SARK_NODE_COMPLETE": f"complete_{of}", **result}, prog_name="sark-node"
    )
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    return [line.partition("\t")[0] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("watch c-", ["c-bbbb3333", "c-aaaa2222"]),
        ("results c-a", ["c-aaaa2222"]),
        ("cancel c-a", ["c-aaaa2222"]),
        ("explain c-aaaa2222/", ["c-aaaa2222/1", "c-aaaa2222/2"]),
        ("report c-b", ["c-bbbb3333"]),
        ("pause lab", ["lab 1"]),
        (f"drain {PEER[:9]}", [PEER]),
        ("experiment show n", ["nightly"]),
        ("experiment show nightly@", ["nightly@2", "nightly@1"]),
        ("models pin n", ["net.onnx"]),
        ("compare --reference m", ["mobilenet.onnx"]),
        ("compare --by device lab", ["lab 1"]),
        ("bench --unit Open", ["OpenVINO CPU (ONNX)", "OpenVINO GPU (ONNX)", "OpenVINO NPU (ONNX)"]),
        ("matrix c-aaaa2222 --base lab", ["lab 1"]),
    ],
)
def test_names_of_this_home_are_offered(home: Path, line: str, words: list[str]) -> None:
    result = offered(home, line)
    if line.startswith("drain"):
        assert PEER in result
    else:
        assert result == words or sorted(result) == sorted(words)


def test_bash_is_given_words_as_they_are_typed(home: Path) -> None:
    assert offered(home, "pause la", of="bash") == ["lab\\ 1"]
    assert offered(home, "watch c-a", of="bash") == ["c-aaaa2222"]


def test_where_there_is_no_store_nothing_is_offered_and_nothing_is_made(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    for line in ("watch c-", "pause la", "experiment show n", "compare --reference m", "models pin n"):
        assert offered(nowhere, line) == []
    assert not nowhere.exists()


def test_a_store_that_is_damaged_or_in_use_offers_nothing_and_is_left_as_it_is(tmp_path: Path) -> None:
    store = Home.at(tmp_path).store
    store.parent.mkdir(parents=True)
    store.write_bytes(b"this is no database" * 100)
    before = store.read_bytes()
    assert offered(tmp_path, "watch c-") == []
    assert store.read_bytes() == before
    store.unlink()
    with contextlib.closing(sqlite3.connect(store)) as other:
        other.execute("CREATE TABLE campaigns (id, name, created)")
        other.commit()
        other.execute("BEGIN EXCLUSIVE")
        assert offered(tmp_path, "watch c-") == []
