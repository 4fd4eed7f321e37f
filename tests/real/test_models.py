"""A model of several pieces on real workers: it is fetched or its owner added it, and it is removed when its owner says so."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tests.real.lab import Lab, campaign, script, until

LARGE = 9 * 1024**2


def large(folder: Path, name: str, load_ms: float) -> tuple[Path, str]:
    """A script as long as a small model."""
    path = script(folder, name, load_ms=load_ms, latencies_ms=[1.0])
    with path.open("ab") as file:
        file.write(b" " * (LARGE - path.stat().st_size))
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def kept(lab: Lab, name: str) -> dict[str, Any]:
    """The models that the worker's owner sees, by hash."""
    return {each["sha256"]: each for each in lab.run(name, "models", "--json").json()["models"]}


def test_a_model_of_several_pieces_reaches_both_workers_and_is_removed_while_they_run(
    lab: Lab, tmp_path: Path
) -> None:
    model, sha = large(tmp_path, "large.json", 71.0)
    file = campaign(tmp_path, "large", [model], measure={"runs": 5, "loads": 1, "threads": [1, 2, 3, 4]})
    done = lab.submit("ada", file)
    assert done.code == 0, done
    having = [name for name in lab.workers if sha in kept(lab, name)]
    assert having
    for name in having:
        result = kept(lab, name)[sha]
        assert (result["name"], result["size"], result["arriving"]) == ("large.json", LARGE, False)
        assert result["from"].startswith("scheduler")
        removed = lab.run(name, "models", "remove", sha[:10])
        assert removed.code == 0, removed
        assert sha not in kept(lab, name)
    assert lab.submit("ada", file).code == 0


def test_a_model_that_its_owner_put_there_is_taken_up_by_the_worker_that_runs(
    lab: Lab, tmp_path: Path
) -> None:
    model, sha = large(tmp_path, "mine.json", 72.0)
    for name in lab.workers:
        added = lab.run(name, "models", "add", model, "--pin")
        assert added.code == 0, added
    until(
        lambda: all("model.verified" in lab.log(name) for name in lab.workers),
        "both workers have taken it up",
    )
    done = lab.submit("ada", campaign(tmp_path, "mine", [model], measure={"runs": 5, "loads": 1}))
    assert done.code == 0, done
    for name in lab.workers:
        result = kept(lab, name)[sha]
        assert result["pinned"]
        assert result["from"].startswith("added from")
        assert lab.run(name, "models", "remove", sha).code == 0
    assert json.loads(model.read_bytes())["load_ms"] == 72.0
