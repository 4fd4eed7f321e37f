"""A campaign that compares models: both go to one worker, which fetches them and lets them take turns; and the output that shows the
comparison.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.formats.reference_model import chain_of_products
from tests.real.lab import Lab


@pytest.mark.slow
def test_variants_take_turns_on_one_worker_and_the_slower_is_told(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "short.onnx").write_bytes(chain_of_products(layers=4))
    (tmp_path / "long.onnx").write_bytes(chain_of_products(layers=12))
    file = tmp_path / "pair.yaml"
    file.write_text(
        "campaign: pair\nunits: [CPU (ONNX)]\n"
        "models: [{name: chain, variants: {short: short.onnx, long: long.onnx}}]\n"
        "measure: {against: first, threads: [1]}\n",
        "utf-8",
    )
    plan = lab.run("ada", "plan", file, "--gate", lab.gate, "--json")
    assert [(cell["model"], cell["against"]) for cell in plan.json()["cells"]] == [
        ("chain long", "chain short")
    ]
    done = lab.submit("ada", file)
    assert done.code == 0, done
    (row,) = done.json()["results"]
    assert (row["Status"], row["FileName"], row["Against"]) == ("Complete", "chain long", "chain short")
    assert (row["CompareVerdict"], row["Ratio"] > 1.5, row["Launches"]) == ("SLOWER", True, 6)
    assert row["AgainstMsMedian"] < row["InferenceMsMedian"]
    campaign = row["Campaign"]
    (pair,) = lab.run("ada", "compare", campaign, "--json").json()["pairs"]
    assert (pair["in_turns"], pair["verdict"]) == (True, "SLOWER")
    raw = tmp_path / "raw.json"
    lab.run("ada", "results", campaign, "--raw", raw)
    assert lab.run("ada", "verify", raw).code == 0
    report = tmp_path / "report.md"
    lab.run("ada", "report", campaign, "-o", report)
    assert "In turns" in report.read_text("utf-8")
