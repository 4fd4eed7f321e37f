"""Inputs that a model's format does not describe: written in the campaign, carried in the task."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.errors import CampaignError
from protocol.values.task import Model, read_task, task_body
from scheduler.campaign.load import parse_campaign
from scheduler.campaign.model import Campaign
from scheduler.models.files import CampaignFile
from scheduler.planning.tasks import derive_cells, tasks_of
from swarm.net.identity import Identity

MODELS = {"net.pt": CampaignFile(Path("net.pt"), Model(name="net.pt", sha256="a" * 64, size=1))}
SCHEDULER = Identity.from_seed(1).peer_id


def text(form: str) -> bytes:
    return (
        "campaign: t\nunits: [CPU (Torch)]\nmodels:\n"
        f" - path: net.pt\n   inputs:\n     x: {form}\n     mask: 'bool[1, length]'\n"
    ).encode()


def test_they_travel_in_the_task_as_they_were_written() -> None:
    campaign = parse_campaign(text("'float32[batch, 3,224, 224]'"), "c.yaml")
    (task,) = tasks_of(derive_cells(campaign, MODELS, campaign_id="c-1", scheduler=SCHEDULER))
    sent = read_task(task_body(task))
    assert sent.measure.inputs == {"x": "float32[batch, 3,224, 224]", "mask": "bool[1, length]"}


@pytest.mark.parametrize(
    "form",
    [
        "float32",
        "'[1, 2]'",
        "[1, -2]",
        "[1, x]",
        "[1.5]",
        "[true]",
        "3",
        "'float32[1,,2]'",
        "'float32[1 2]'",
        "'float32[-1]'",
    ],
)
def test_what_is_no_type_and_shape_is_refused_with_its_line(form: str) -> None:
    with pytest.raises(CampaignError, match="is not the shape of an input") as caught:
        parse_campaign(text(form), "c.yaml")
    assert caught.value.line == 6
    assert "x: [1, 3, 224, 224]" in str(caught.value.hint)
    assert "float32[1, 3, 224, 224]" in str(caught.value.hint)


def test_a_shape_alone_travels_as_one() -> None:
    campaign = parse_campaign(text("[1, 3, 48, 320]"), "c.yaml")
    (task,) = tasks_of(derive_cells(campaign, MODELS, campaign_id="c-1", scheduler=SCHEDULER))
    sent = read_task(task_body(task))
    assert (sent.measure.shapes, list(sent.measure.inputs)) == ({"x": (1, 3, 48, 320)}, ["mask"])
    assert Campaign.model_validate_json(campaign.spec()).models[0].shapes == {"x": (1, 3, 48, 320)}
