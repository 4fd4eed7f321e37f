"""The simulated fleet of the demo: varied, the same each time, marked wherever it is shown, and never mixed with measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drivers.contract.base import Unfit
from drivers.testing.fake import KIND, read_script
from node.device.probe import Profile, build_advert, device_facts, memory_cap
from node.device.simulated import read_pretended
from protocol.errors import SettingsError
from protocol.values.advert import UnitOffer, advert_body, read_advert
from protocol.values.match import match
from protocol.values.requirement import Requirement
from results.analysis.pairs import pair_up, why_not_comparable
from results.export.raw import ResultEntry
from results.row.comparison import ComparisonVerdict
from results.row.row import Row, RowStatus
from scheduler.campaign.load import load_campaign
from scheduler.local.demo import KINDS, MODELS, members, script, write_campaign
from scheduler.output.fleet import ObservedDevice, device_info
from scheduler.output.peers import peer_remarks, peers_table
from scheduler.planning.tasks import device_class
from swarm.net.identity import Identity

PEER = Identity.from_seed("pretender").peer_id
REAL = Profile(
    device="d-real",
    name="host",
    soc="A real chip",
    ram=8 * 1024**3,
    units=(UnitOffer(unit="CPU (ONNX)", runtime="r"), UnitOffer(unit="Fake (Simulation)", runtime="script")),
    drivers={"CPU (ONNX)": "onnx", "Fake (Simulation)": "fake"},
)


def test_each_member_is_a_class_of_its_own_and_offers_the_simulated_unit_alone() -> None:
    adverts = []
    for member in members(16):
        profile = read_pretended(member.pretended).profile(REAL)
        advert = build_advert(profile, PEER)
        adverts.append(read_advert(advert_body(advert)))
        assert [unit.unit for unit in advert.units] == ["Fake (Simulation)"]
        assert advert.simulated is True
        assert device_facts(profile, "1").simulated is True
        assert profile.soc.startswith("Simulated ")
        assert memory_cap(profile, 1.0) != profile.ram, "what it may take is of this machine"
    assert len({device_class(advert) for advert in adverts}) == len(KINDS)
    assert len({advert.device for advert in adverts}) == 16
    assert build_advert(REAL, PEER).simulated is None


@pytest.mark.parametrize("text", ["", "{}", '{"kind": "x"}', "[1]"])
def test_an_invalid_pretended_profile_is_a_settings_error(text: str) -> None:
    with pytest.raises(SettingsError, match="--pretend"):
        read_pretended(text)


def test_the_scripts_are_the_same_each_time_and_differ_by_kind(tmp_path: Path) -> None:
    file = write_campaign(tmp_path)
    assert load_campaign(file).devices.spread == "class"
    for model in MODELS:
        assert json.loads((tmp_path / f"{model}.json").read_text()) == script(model) == script(model)
        medians = {kind: sum(times["latencies_ms"]) for kind, times in script(model)["kinds"].items()}
        assert len(set(medians.values())) == len(KINDS)
        assert min(medians, key=lambda kind: medians[kind]) == "gpu-server"


def test_a_script_is_that_of_the_kind_which_the_worker_pretends_to_be(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text('{"load_ms": 1, "kinds": {"phone": {"latencies_ms": [9]}}}')
    assert read_script(str(path), {KIND: "phone"}) == {"load_ms": 1, "latencies_ms": [9]}
    assert read_script(str(path), {}) == {"load_ms": 1}
    path.write_text('{"kinds": {"phone": {"kinds": {}}}}')
    with pytest.raises(Unfit, match="kinds"):
        read_script(str(path), {KIND: "phone"})


def test_simulated_devices_are_shown_as_simulations() -> None:
    advert = build_advert(read_pretended(members(1)[0].pretended).profile(REAL), PEER)
    observed = [ObservedDevice(advert, None, "", match(Requirement(), advert))]
    assert device_info(observed[0]).simulated is True
    assert "1 of 1 are simulated: these devices do not exist" in peer_remarks(observed)
    (column,) = [column for column in peers_table(observed).columns if column.header == "device"]
    assert "(simulation)" in str(next(iter(column.cells)))


def row(**changes: object) -> Row:
    facts: dict[str, object] = {
        "status": RowStatus.COMPLETE,
        "job_id": "c-1/1",
        "file_name": "m",
        "file_size": 9,
        "compute_units": "CPU (ONNX)",
        "inference_ms_median": 2.0,
        "verdict": "valid",
    }
    return Row.model_validate(facts | changes)


def test_a_simulation_is_never_compared_with_a_measurement() -> None:
    launches = tuple((2_000_000 + n,) * 5 for n in range(8))
    real, pretended = ResultEntry(row(), launches), ResultEntry(row(simulated=True), launches)
    for a, b in ((real, pretended), (pretended, real)):
        (pair,) = pair_up([a], [b])
        assert pair.comparison.ratio is None
        assert "is a simulation, the other was measured" in pair.comparison.why
    assert why_not_comparable(real.row, real.row) == why_not_comparable(pretended.row, pretended.row) == ""
    (both,) = pair_up([pretended], [pretended])
    assert both.comparison.verdict is ComparisonVerdict.SAME
    assert "a simulation" in both.note
