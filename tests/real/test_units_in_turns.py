"""A campaign that compares two units: they take turns on the worker that has both; a worker without the second gets no task."""

from __future__ import annotations

import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.formats.reference_model import chain_of_products
from tests.real.lab import Lab

OTHER = "CPU (OpenVINO)"
STAND_IN = """
from dataclasses import replace

from drivers.contract.base import UnitInfo
from drivers.onnx.driver import OnnxDriver


class StandIn(OnnxDriver):
    name = "standin"

    def units(self):
        return (UnitInfo("CPU (OpenVINO)", self.name, "stand-in 1"),)

    def samples(self):
        return ()

    def open(self, order):
        from pathlib import Path

        from drivers.onnx.runner import OnnxModel
        from protocol.formats.reference_model import chain_of_products

        class Model(OnnxModel):
            def ran_on(self, prepared):
                return replace(super().ran_on(prepared), unit="CPU (OpenVINO)")

        slow = Path("slow.onnx").absolute()
        slow.write_bytes(chain_of_products(layers=12))
        return Model(replace(order, unit="CPU (ONNX)", model=str(slow)))
"""
"""The runtime of one unit under the name of another, which not every device here has. It takes three times as long."""


def python_with_stand_in(folder: Path) -> str:
    """An interpreter with the packages of ours, and the stand-in driver."""
    venv.create(folder, symlinks=True, with_pip=False)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    ours = [path for path in sys.path if Path(path).is_dir()]
    (packages / "ours.pth").write_text("\n".join(ours) + "\n", "utf-8")
    (packages / "standin.py").write_text(STAND_IN, "utf-8")
    info = packages / "standin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: standin\nVersion: 1.0\n", "utf-8")
    (info / "entry_points.txt").write_text("[sark.drivers]\nstandin = standin:StandIn\n", "utf-8")
    return str(folder / "bin" / "python")


@pytest.fixture
def unlike(tmp_path: Path) -> Iterator[Lab]:
    """A lab whose worker `both` has one unit more than its worker `one`."""
    lab = Lab(tmp_path / "lab", ("ada",), workers=("one",))
    try:
        lab.mend()
        lab.program = (python_with_stand_in(tmp_path / "venv"), "-P", "-m", "sark")
        lab.start_worker("both")
        lab.await_up("both")
        device = lab.run("one", "info", "--json").json()["device"]
        one, both = map(lab.worker_peer, ("one", "both"))
        assert lab.run("ada", "trust", one, "--device", device).code == 0
        assert lab.run("ada", "trust", both, "--same-device-as", one).code == 0
        yield lab
    finally:
        lab.close()


@pytest.mark.slow
def test_units_take_turns_on_the_worker_that_has_both(unlike: Lab, tmp_path: Path) -> None:
    (tmp_path / "chain.onnx").write_bytes(chain_of_products(layers=4))
    file = tmp_path / "units.yaml"
    file.write_text(
        f"campaign: units\nmodels: [chain.onnx]\nunits: [CPU (ONNX)]\ndevices: {{spread: worker}}\n"
        f"measure: {{against: {OTHER}, threads: [1]}}\n",
        "utf-8",
    )
    plan = unlike.run("ada", "plan", file, "--gate", unlike.gate, "--json").json()
    assert [(cell["unit"], cell["against"], cell["tasks"]) for cell in plan["cells"]] == [
        ("CPU (ONNX)", OTHER, 1)
    ]
    (left,) = (note for note in plan["notes"] if note.startswith("Left out: one: units: has "))
    assert left.endswith(f"needs has {OTHER}")
    done = unlike.submit("ada", file)
    assert done.code == 0, done
    (row,) = done.json()["results"]
    assert (row["Status"], row["DeviceName"]) == ("Complete", "both")
    assert (row["ComputeUnits"], row["Against"], row["AgainstUnit"]) == ("CPU (ONNX)", "chain.onnx", OTHER)
    assert (row["CompareVerdict"], row["Ratio"] < 0.7, row["Launches"]) == ("FASTER", True, 6)
    assert "each in a process of its own" in row["CompareReason"]
    campaign = row["Campaign"]
    (pair,) = unlike.run("ada", "compare", campaign, "--json").json()["pairs"]
    assert (pair["in_turns"], pair["a_unit"], pair["b_unit"]) == (True, OTHER, "CPU (ONNX)")
    raw = tmp_path / "raw.json"
    unlike.run("ada", "results", campaign, "--raw", raw)
    assert unlike.run("ada", "verify", raw).code == 0
    assert f"FASTER than {OTHER}" in unlike.run("ada", "results", campaign).out
