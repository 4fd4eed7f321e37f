"""The output about a campaign for programs."""

from __future__ import annotations

from results.scoring.account import EvaluationAccount
from scheduler.output.schemas import CampaignExamples, CampaignModel, campaign_detail
from scheduler.store.rows import CampaignRow, CampaignSummary, NewModel

ACCOUNT = EvaluationAccount(title="classification of digits.npz", metrics=("accuracy",), references=(1, 0))


def test_examples_are_no_models_and_say_what_they_evaluate() -> None:
    files = (
        NewModel("m", "ab" * 32, 7),
        NewModel("m: examples", "cd" * 32, 9, evaluation=ACCOUNT.model_dump_json()),
    )
    row = CampaignRow("c-1", "t", "me", "{}")
    detail = campaign_detail(CampaignSummary(row, {}), files, {}, 1, scheduling=True)
    assert detail.models == (CampaignModel(name="m", sha256="ab" * 32, size=7),)
    assert detail.examples == (
        CampaignExamples(
            model="m",
            title="classification of digits.npz",
            count=2,
            metrics=("accuracy",),
            sha256="cd" * 32,
            size=9,
        ),
    )
