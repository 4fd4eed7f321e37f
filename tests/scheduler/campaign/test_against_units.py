"""Campaigns that compare units: which pairs there are, what is refused, and what a device must have."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.errors import CampaignError
from protocol.formats.reference_model import reference_sha256
from protocol.values.advert import Advert, UnitOffer
from protocol.values.features import FEATURES
from protocol.values.index_keys import index_alternatives
from protocol.values.match import match
from protocol.values.task import Model, Task
from protocol.words import SIMULATED_UNIT as SIMULATED
from scheduler.campaign.load import parse_campaign
from scheduler.campaign.model import Campaign
from scheduler.campaign.text import campaign_text, read_spec
from scheduler.models.describe import describe_models, model_notes
from scheduler.models.files import CampaignFile
from scheduler.planning.tasks import cells, derive_cells, requirements, tasks_of
from swarm.net.identity import Identity

ME = Identity.from_seed("scheduler").peer_id
ONNX, OPENVINO, TORCH, LITERT, GPU = (
    "CPU (ONNX)", "CPU (OpenVINO)", "CPU (Torch)", "CPU (LiteRT)", "GPU (ONNX)"
)  # fmt: skip
YOLO = "{name: yolo, variants: {fp32: a.onnx, int8: b.onnx}}"
FILES = "{name: net, files: {onnx: n.onnx, tflite: n.tflite}}"


def campaign(models: str, against: str, *units: str, more: str = "") -> Campaign:
    text = f"campaign: t\nmodels: [{models}]\nunits: [{', '.join(units)}]\nmeasure: {{against: {against}}}\n{more}\n"
    return parse_campaign(text.encode(), "c.yaml")


def tasks(plan: Campaign, devices: tuple[Advert, ...] = ()) -> tuple[Task, ...]:
    models = {
        entry.key: CampaignFile(
            Path(entry.key), Model(name=entry.label, sha256=f"{n:064x}", size=10, variant=entry.variant)
        )
        for n, entry in enumerate(plan.models)
    }
    return tasks_of(derive_cells(plan, models, campaign_id="c-1", scheduler=ME, devices=devices))


def pairs(plan: Campaign) -> list[tuple[str, str, str | None]]:
    return [(cell.model.key, cell.unit, cell.against) for cell in cells(plan)]


def device(name: str, *units: str, features: tuple[str, ...] | None = FEATURES) -> Advert:
    offers = tuple(UnitOffer(unit=unit, runtime="r") for unit in units)
    peer = Identity.from_seed(name).peer_id
    return Advert(peer=peer, seq=1, device=f"d-{name}", name=name, units=offers, features=features)


@pytest.mark.parametrize(
    ("models", "against", "units", "made"),
    [
        ("m.onnx", ONNX, (ONNX, OPENVINO), [("m.onnx", OPENVINO, ONNX)]),
        ("m.onnx", ONNX, (OPENVINO, GPU), [("m.onnx", OPENVINO, ONNX), ("m.onnx", GPU, ONNX)]),
        ("m.onnx", f"{{unit: {ONNX}}}", (OPENVINO,), [("m.onnx", OPENVINO, ONNX)]),
        (YOLO, ONNX, (OPENVINO,), [("yolo fp32", OPENVINO, ONNX), ("yolo int8", OPENVINO, ONNX)]),
        (f"m.onnx, {{path: t.pt2, units: [{TORCH}]}}", ONNX, (OPENVINO,), [
            ("m.onnx", OPENVINO, ONNX), ("t.pt2", TORCH, None)
        ]),
        (FILES, ONNX, (ONNX, LITERT), [("net (tflite)", LITERT, ONNX)]),
        (FILES, LITERT, (ONNX,), [("net (onnx)", ONNX, LITERT)]),
        ("a.onnx, b.pt2", f"{{model: a.onnx, unit: {ONNX}}}", (ONNX, TORCH), [
            ("b.pt2", TORCH, f"a.onnx on {ONNX}")
        ]),
        (YOLO, f"{{model: fp32, unit: {ONNX}}}", (ONNX, OPENVINO), [
            ("yolo fp32", OPENVINO, ONNX),
            ("yolo int8", ONNX, "yolo fp32"),
            ("yolo int8", OPENVINO, f"yolo fp32 on {ONNX}"),
        ]),
        ("{name: CPU (ONNX), path: a.onnx}, b.onnx", ONNX, (GPU,), [("b.onnx", GPU, ONNX)]),
        ("t.pt2", f"{{model: reference, unit: {ONNX}}}", (TORCH,), [("t.pt2", TORCH, f"reference on {ONNX}")]),
    ],
)  # fmt: skip
def test_each_model_on_each_unit_takes_turns_with_what_it_is_compared_with(
    models: str, against: str, units: tuple[str, ...], made: list[tuple[str, str, str | None]]
) -> None:
    plan = campaign(models, against, *units)
    assert pairs(plan) == made
    assert pairs(read_spec(plan.spec(), "t")) == made, "stored and read again"
    assert pairs(parse_campaign(campaign_text(plan).encode(), "c.yaml")) == made, "cloned"


def test_a_word_alone_is_stored_as_it_was() -> None:
    assert campaign("m.onnx", ONNX, OPENVINO).model_dump(mode="json")["measure"]["against"] == ONNX
    both = {"model": "m.onnx", "unit": ONNX}
    value = f"{{model: m.onnx, unit: {ONNX}}}"
    assert campaign("m.onnx", value, OPENVINO).model_dump(mode="json")["measure"]["against"] == both


@pytest.mark.parametrize(
    ("models", "against", "units", "what", "hint"),
    [
        ("m.onnx", "CPU (ONX)", (OPENVINO,), "unknown compute unit 'CPU (ONX)'", "did you mean 'CPU (ONNX)'?"),
        ("m.onnx", "{unit: CPU}", (OPENVINO,), "unknown compute unit 'CPU'", "units: CPU (ONNX), "),
        ("m.onnx", ONNX, (ONNX,), "CPU (ONNX) leaves no unit to compare with it", "add another one under units"),
        ("m.onnx", LITERT, (ONNX,), "CPU (LiteRT) runs no model of this campaign", "name a unit that does"),
        ("m.onnx", "API (OpenAI)", (ONNX,), "cannot be used with API (OpenAI)", "of its own"),
        ("m.onnx", f"{{unit: {SIMULATED}}}", (ONNX,), "cannot be used with Fake (Simulation)", "of its own"),
        ("m.onnx", "{units: CPU (ONNX)}", (ONNX,), "against cannot be {'units'", "against: {model: fp32, unit: CPU (ONNX)}"),
        ("m.onnx", "3", (ONNX,), "against cannot be 3", "such as against: fp32"),
        ("m.onnx", f"{{unit: {ONNX}, modle: m.onnx}}", (OPENVINO,), "unknown key 'modle'", "did you mean 'model'?"),
        (
            "{path: a.onnx, units: [CPU (ONNX)]}, b.pt2", f"{{model: a.onnx, unit: {TORCH}}}", (TORCH,),
            "CPU (Torch) runs pt2, torchscript and safetensors, not 'a.onnx'", "name a unit that runs it",
        ),
        ("t.pt2", "reference", (TORCH,), "an ONNX model, which CPU (Torch)", "{model: reference, unit: CPU (ONNX)}"),
        (
            "a.onnx, {path: b.pt2, dims: {H: 8}}", f"{{model: a.onnx, unit: {ONNX}}}", (ONNX, TORCH),
            "other input sizes", "give both",
        ),
    ],
)  # fmt: skip
def test_units_that_cannot_be_compared_are_refused_with_the_right_form(
    models: str, against: str, units: tuple[str, ...], what: str, hint: str
) -> None:
    with pytest.raises(CampaignError) as caught:
        campaign(models, against, *units)
    assert what in caught.value.detail
    assert hint in caught.value.first_hint
    assert caught.value.line == 4


def test_the_task_has_both_units_and_needs_a_device_that_lets_them_take_turns() -> None:
    (task,) = tasks(campaign("m.onnx", ONNX, OPENVINO))
    assert (task.unit, task.beside, task.beside_units) == (OPENVINO, (task.model,), (ONNX,))
    assert task.units() == (OPENVINO, ONNX)
    assert [str(clause) for clause in task.requirement.clauses] == [
        f"units has {OPENVINO}", f"units has {ONNX}", "features has units-in-turns"
    ]  # fmt: skip
    assert match(task.requirement, device("both", ONNX, OPENVINO)).fits
    (less,) = match(task.requirement, device("one", OPENVINO)).missing
    assert str(less) == f"units: has {OPENVINO}, needs has {ONNX}"
    (older,) = match(task.requirement, device("old", ONNX, OPENVINO, features=None)).missing
    assert str(older) == "features: has none, needs has units-in-turns"


def test_two_models_on_one_unit_take_turns_in_one_process_and_on_any_version() -> None:
    (task,) = tasks(campaign("a.onnx, b.onnx", f"{{model: a.onnx, unit: {ONNX}}}", ONNX))
    assert task.beside_units is None
    assert [str(clause) for clause in task.requirement.clauses] == [f"units has {ONNX}"]


def test_the_reference_model_has_a_unit_of_its_own_beside_another_runtime() -> None:
    (task,) = tasks(campaign("t.pt2", f"{{model: reference, unit: {ONNX}}}", TORCH))
    assert task.beside is not None
    assert (task.beside[0].sha256, task.beside_units) == (reference_sha256(), (ONNX,))


def test_devices_are_looked_for_by_both_units() -> None:
    (need,) = requirements(campaign("m.onnx", ONNX, ONNX, OPENVINO))
    assert {(f"unit:{OPENVINO}",), (f"unit:{ONNX}",)} <= set(index_alternatives(need))


def test_a_device_without_the_second_unit_is_not_one_of_so_many() -> None:
    plan = campaign("m.onnx", ONNX, OPENVINO, more="devices: {limit: 1}")
    made = tasks(plan, (device("a", OPENVINO), device("b", ONNX, OPENVINO)))
    assert [str(task.requirement.clauses[-1]) for task in made] == ["device == d-b"]


def test_a_file_that_is_only_compared_with_is_looked_at_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "n.onnx").write_bytes(b"no model")
    (tmp_path / "n.tflite").write_bytes(b"no model")
    plan = campaign(FILES, LITERT, ONNX)
    assert model_notes(plan) == ()
    with pytest.raises(CampaignError, match="onnx"):
        describe_models(plan, tmp_path)
