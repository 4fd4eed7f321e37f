"""A stored campaign as a file again, that somebody can edit and run. Pure: what is read from the text is the campaign it was made of."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import yaml
from pydantic import ValidationError

from protocol.errors import CampaignError
from scheduler.campaign.model import Campaign, JobFields, ModelEntry, Schedule, StepEntry
from swarm.base.yaml import word_value


def read_spec(spec: str, title: str) -> Campaign:
    """The campaign that was stored as `spec`. Raises `CampaignError` where another version of sark-node stored it."""
    try:
        return Campaign.model_validate_json(spec)
    except ValidationError as exc:
        raise CampaignError(
            f"{title} was stored by another version of sark-node", hint="save its file again"
        ) from exc


def campaign_text(
    campaign: Campaign, *, folder: str = "", schedule: Schedule | None = None, note: str = ""
) -> str:
    """YAML. `folder`: where its relative paths began; with it they become whole. `note`: a comment at the top."""
    value = _plain(campaign, folder) if campaign.jobs else _ours(campaign, folder)
    if schedule is not None:
        value["schedule"] = schedule.model_dump(mode="json", exclude_defaults=True)
    head = "".join(f"# {line}\n" for line in note.splitlines())
    return head + yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    """Quotes also what our reader alone would take for a number, such as 1e5."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    quoted = "'" if word_value(text) != text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=quoted)


_Dumper.add_representer(str, _text)


def _ours(campaign: Campaign, folder: str) -> dict[str, Any]:
    told = campaign.model_dump(mode="json", exclude_defaults=True, exclude={"models", "schedule", "jobs"})
    value = {
        "campaign": campaign.campaign,
        "models": [_model(entry, folder) for entry in campaign.models],
        **told,
    }
    for name in ("pre", "post"):
        if name in value.get("measure", {}):
            value["measure"][name] = [_step(entry) for entry in getattr(campaign.measure, name)]
    return value


def _model(entry: ModelEntry, folder: str) -> str | dict[str, Any]:
    told = entry.model_dump(mode="json", exclude_defaults=True)
    if entry.path is not None:
        told["path"] = _whole(entry.path, folder) if entry.package is None else entry.path
    (only,) = told if len(told) == 1 else ("",)
    return str(told[only]) if only == "path" else told


def _whole(path: str, folder: str) -> str:
    if not folder or path.startswith("~"):
        return path
    return str(PurePath(folder) / path)


def _step(entry: StepEntry) -> str | dict[str, Any]:
    told = entry.model_dump(mode="json", exclude_defaults=True, exclude={"options"})
    told |= entry.model_dump(mode="json")["options"]
    return entry.step if len(told) == 1 else told


def _plain(campaign: Campaign, folder: str) -> dict[str, Any]:
    """The form that it came in: one model and its jobs."""
    (entry,) = campaign.models
    given = {
        "campaign": campaign.campaign,
        "model_url": entry.url if entry.path is None else _whole(entry.path, folder),
        "model_sha256": entry.sha256,
        "model_size": entry.size,
    }
    return {
        **{key: value for key, value in given.items() if value is not None},
        "jobs": [_job(job) for job in campaign.jobs],
    }


def _job(job: JobFields) -> dict[str, Any]:
    told: dict[str, Any] = {"compute_unit": job.unit}
    if job.runs is not None:
        told["num_inference_runs"] = job.runs
    for clause in job.where:
        attribute, _, value = clause.partition(" == ")
        told[{"device": "device_udid", "peer": "worker_id"}[attribute]] = value
    return told
