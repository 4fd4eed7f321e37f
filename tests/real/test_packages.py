"""The packages of examples/, installed beside Sark by pip: a gate, a worker and a scheduler find another author's driver, metric and task,
and only those that need a package have it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.browser.site import network
from tests.real.lab import Lab, campaign, marked, until

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SERVER = ROOT / "tests" / "drivers" / "openai_server.py"
UNIT = "CPU (Mine)"
FEW = 8
PLAN = "plan-5-1"
"""A model of the server."""


def program_with(folder: Path, *examples: str) -> tuple[str, ...]:
    """`sark-node` in a fresh environment: this tree, our libraries, and these packages as pip installs them."""
    venv.create(folder / "venv", with_pip=False)
    own = next(folder.glob("venv/lib/python*/site-packages"))
    libraries = next(path for path in sys.path if path.endswith("site-packages"))
    (own / "of-the-tests.pth").write_text(f"{ROOT}\n{libraries}\n", encoding="utf-8")
    copies = [shutil.copytree(EXAMPLES / each, folder / each) for each in examples]
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    pip = (sys.executable, "-m", "pip", "install", *options, "--target", own, *copies)
    subprocess.run(pip, check=True, stdin=subprocess.DEVNULL)
    return (str(folder / "venv" / "bin" / "python"), "-P", "-m", "sark")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server of language models; gives its address."""
    process = subprocess.Popen(
        [sys.executable, str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    process.stdin.close()
    process.wait()
    process.stdout.close()


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory, server: str) -> Iterator[Lab]:
    """Only the worker has the driver; only the submitting home has the metric and the task."""
    programs = {
        "one": program_with(tmp_path_factory.mktemp("one"), "driver"),
        "ada": program_with(tmp_path_factory.mktemp("ada"), "metric", "task"),
    }
    lab = Lab(
        tmp_path_factory.mktemp("lab"),
        ("ada",),
        workers=("one",),
        programs=programs,
        settings={"SARK_API": server},
    )
    try:
        lab.mend()
        yield lab
    finally:
        lab.close()
    until(lambda: not marked(lab.mark), "nothing of the lab is left")


def measured(lab: Lab, file: Path) -> tuple[str, dict[tuple[str, str], Any]]:
    """The campaign's id, and its rows by model and unit, all of which are complete."""
    done = lab.submit("ada", file)
    assert done.code == 0, done
    rows = {(row["FileName"], row["ComputeUnits"]): row for row in done.json()["results"]}
    assert {row["Status"] for row in rows.values()} == {"Complete"}
    return str(done.json()["campaign"]), rows


def test_a_unit_of_a_driver_that_a_device_alone_has_is_known_from_the_swarm(
    packaged: Lab, tmp_path: Path
) -> None:
    (tmp_path / "small.mine").write_bytes(b"mine")
    models = [{"path": "small.mine", "units": [UNIT]}, {"path": str(network(tmp_path, "net.onnx", FEW))}]
    file = campaign(tmp_path, "foreign", models, units=[UNIT, "CPU (ONNX)"])
    valid = packaged.run("ada", "validate", file, "--gate", packaged.gate)
    assert valid.code == 0, valid
    assert f"'net.onnx' is not measured on {UNIT}, which runs mine, not onnx." in " ".join(valid.out.split())
    plan = packaged.run("ada", "plan", file, "--gate", packaged.gate, "--json")
    assert plan.code == 0, plan
    _, rows = measured(packaged, file)
    assert rows.keys() == {("small.mine", UNIT), ("net.onnx", "CPU (ONNX)")}
    row = rows["small.mine", UNIT]
    assert (row["Runtime"], row["Providers"]) == ("mine 1.0", "plain Python")


def test_a_unit_that_nobody_has_is_refused_with_what_devices_offer(packaged: Lab, tmp_path: Path) -> None:
    (tmp_path / "small.mine").write_bytes(b"mine")
    file = campaign(tmp_path, "nobody", [tmp_path / "small.mine"], units=["CPU (Yours)"])
    for command in ("validate", "plan", "submit"):
        done = packaged.run("ada", command, file, "--gate", packaged.gate)
        assert done.code == 2, done
        assert "CPU (Yours)" in done.err


def test_a_metric_that_the_submitter_alone_has_scores_what_devices_answer(
    packaged: Lab, tmp_path: Path
) -> None:
    np.savez(tmp_path / "few.npz", x=np.eye(FEW, dtype=np.float32), labels=np.arange(FEW))
    evaluate = {"task": "classification", "data": "few.npz", "metrics": ["accuracy", "margin"]}
    model = {"path": str(network(tmp_path, "net.onnx", FEW)), "evaluate": evaluate}
    found, rows = measured(packaged, campaign(tmp_path, "metric", [model], units=["CPU (ONNX)"]))
    (row,) = rows.values()
    scores = dict(score.split("=") for score in row["Scores"].split("; "))
    assert scores.keys() == {"accuracy", "margin", "margin_min"}
    assert row["ScoredBy"] == "margin=margin 1.0"
    raw = tmp_path / "raw.json"
    assert packaged.run("ada", "results", found, "--raw", raw).code == 0
    verified = packaged.run("ada", "verify", raw)
    assert verified.code == 0, verified
    again = packaged.run("ada", "score", found, "--json")
    assert again.code == 0, again
    assert (again.json()["changed"], len(again.json()["tasks"])) == (0, 1)


def test_a_task_that_the_submitter_alone_has_asks_a_language_model(packaged: Lab, tmp_path: Path) -> None:
    (tmp_path / "chat.yaml").write_text(f"model: {PLAN}\nmax_tokens: 4\nprompts: [hello]\n")
    shutil.copy(EXAMPLES / "task" / "capitals.csv", tmp_path)
    model = {"path": "chat.yaml", "evaluate": {"task": "quiz", "data": "capitals.csv"}}
    _, rows = measured(packaged, campaign(tmp_path, "task", [model], units=["API (OpenAI)"]))
    (row,) = rows.values()
    assert row["Scores"].startswith("wer=")
    assert row["ScoresWhy"] == ""
