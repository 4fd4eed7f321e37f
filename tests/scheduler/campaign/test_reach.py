"""Units of other authors' drivers, as devices advertise them: what a campaign that names such a unit measures there."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from protocol.errors import CampaignError, Unreachable
from protocol.formats.frameworks import UnitFormats
from protocol.values.advert import UnitOffer
from scheduler.campaign.load import parse_campaign
from scheduler.campaign.model import Campaign
from scheduler.campaign.reach import foreign_units
from scheduler.campaign.text import campaign_text
from scheduler.experiments.clone import _text as cloned
from scheduler.models.describe import describe_models, model_notes
from tests.tiny_onnx import tiny_onnx

MINE = "NPU (Mine)"


def offer(unit: str, *formats: str) -> UnitOffer:
    return UnitOffer(unit=unit, runtime="r", formats=formats or None)


def read(text: str, found: UnitFormats | None = None) -> Campaign:
    asked: list[Collection[str]] = []

    def find(units: Collection[str]) -> UnitFormats:
        asked.append(units)
        return found or {}

    campaign = parse_campaign(f"campaign: t\n{text}".encode(), "c.yaml", find_units=find)
    assert asked in ([], [[MINE]])
    return campaign


def measured(campaign: Campaign) -> list[tuple[str, str]]:
    return [(one.key, line.unit) for one in campaign.models for line in campaign.lines_of(one)]


def test_where_devices_differ_whatever_one_of_them_runs_is_tried() -> None:
    assert foreign_units([offer("CPU (ONNX)"), offer(MINE, "onnx"), offer(MINE, "mine", "onnx")]) == {
        MINE: ("onnx", "mine")
    }
    assert foreign_units([offer(MINE, "onnx"), offer(MINE), offer(MINE, "mine")]) == {MINE: ()}


def test_nobody_is_asked_about_units_that_are_known() -> None:
    def find(units: Collection[str]) -> UnitFormats:
        raise AssertionError(units)

    parse_campaign(b"campaign: t\nmodels: [a]\nunits: [GPU 1 (ONNX)]\n", "c.yaml", find_units=find)


def test_a_unit_that_a_device_advertises_measures_the_models_of_its_formats_alone(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(tiny_onnx())
    (tmp_path / "b.mine").write_bytes(b"mine")
    text = f"units: [CPU (ONNX), {MINE}]\nmodels: [a.onnx, {{path: b.mine, units: [{MINE}]}}]\n"
    campaign = read(text, {MINE: ("mine", "tflite")})
    assert measured(campaign) == [("a.onnx", "CPU (ONNX)"), ("b.mine", MINE)]
    describe_models(campaign, tmp_path)
    assert model_notes(campaign) == (
        f"model 'a.onnx' is not measured on {MINE}, which runs mine and tflite, not onnx.",
    )
    assert measured(read(text, {MINE: ()})) == [("a.onnx", "CPU (ONNX)"), ("a.onnx", MINE), ("b.mine", MINE)]


def test_of_several_files_it_measures_the_one_that_it_runs() -> None:
    text = f"units: [CPU (ONNX), {MINE}]\nmodels: [{{name: m, files: {{onnx: m.onnx, tflite: m.tflite}}}}]\n"
    assert measured(read(text, {MINE: ("mine", "tflite")})) == [
        ("m (onnx)", "CPU (ONNX)"),
        ("m (tflite)", MINE),
    ]


def test_a_model_that_it_does_not_run_is_refused_if_it_has_no_other_unit() -> None:
    with pytest.raises(CampaignError, match=r"is an ONNX model, which NPU \(Mine\) cannot run"):
        read(f"units: [{MINE}]\nmodels: [a.onnx]\n", {MINE: ("mine",)})


def test_a_stored_campaign_has_the_formats_of_its_day_and_its_file_has_not() -> None:
    campaign = read(f"units: [{MINE}]\nmodels: [a.mine]\n", {MINE: ("mine",), "CPU (Other)": ("onnx",)})
    again = Campaign.model_validate_json(campaign.spec())
    assert again.unit_formats == {MINE: ("mine",)}
    assert "unit_formats" not in read("units: [CPU (ONNX)]\nmodels: [a]\n").spec()
    assert "unit_formats" not in campaign_text(again)
    assert MINE in cloned(again, "", "note", ["priority=7"])
    with pytest.raises(CampaignError, match="unknown key 'unit_formats'"):
        read("units: [CPU (ONNX)]\nmodels: [a]\nunit_formats: {}\n")


def test_a_unit_that_nobody_has_is_refused_with_what_there_is() -> None:
    with pytest.raises(CampaignError) as caught:
        read(f"units:\n- CPU (ONNX)\n- {MINE}\nmodels: [a]\n", {"NPU (Mint)": ()})
    assert (caught.value.line, caught.value.detail) == (
        4,
        f"no device in reach has a unit called {MINE!r}",
    )
    hint = caught.value.hint or ""
    assert hint.startswith("did you mean 'NPU (Mint)'?  units known here: CPU (ONNX), ")
    assert hint.endswith(", NPU (Mint)")


def test_where_no_device_can_be_asked_it_says_so() -> None:
    def find(units: Collection[str]) -> UnitFormats:
        raise Unreachable("no gate answers")

    text = f"campaign: t\nunits: [{MINE}]\nmodels: [a]\n".encode()
    with pytest.raises(CampaignError, match="unknown compute unit") as caught:
        parse_campaign(text, "c.yaml", find_units=find)
    assert "is not known: no gate answers." in (caught.value.hint or "")
    with pytest.raises(CampaignError, match="unknown compute unit"):
        parse_campaign(text, "c.yaml")
