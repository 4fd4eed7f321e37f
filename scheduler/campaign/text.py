"""Campaigns as text: the starter file that `sark-node init` writes, a stored campaign as a file to edit and run again, and the JSON Schema
of a campaign file, with which editors complete and check it.

The schema is shipped as a file, which a test compares with the models. After a change of the models: `python -m
scheduler.campaign.text`.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePath
from typing import Any, Final

import yaml
from pydantic import ValidationError
from pydantic.json_schema import models_json_schema

from protocol.errors import CampaignError
from scheduler.campaign.compat import PlainCampaign
from scheduler.campaign.errors import HIDDEN
from scheduler.campaign.model import Campaign, JobFields, ModelEntry, Schedule, StepEntry
from scheduler.campaign.unfit import unfit_jobs
from swarm.base.yaml import word_value


def read_spec(spec: str, title: str, hint: str = "save its file again") -> Campaign:
    """The campaign that was stored as `spec`. Raises `CampaignError` when another version of sark-node stored it."""
    try:
        return Campaign.model_validate_json(spec)
    except ValidationError as exc:
        raise CampaignError(f"{title} was stored by another version of sark-node", hint=hint) from exc


def spec_for_devices(spec: str) -> str:
    """A stored campaign as devices keep it for an adopter, without the URL to which its results go."""
    if '"results"' not in spec:
        return spec
    value = json.loads(spec)
    value.pop("results", None)
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def unfit_jobs_of_spec(spec: str) -> dict[str, str]:
    """See `unfit_jobs`; empty for a campaign that cannot be read."""
    try:
        return unfit_jobs(Campaign.model_validate_json(spec))
    except ValidationError:
        return {}


def campaign_text(
    campaign: Campaign, *, folder: str = "", schedule: Schedule | None = None, note: str = ""
) -> str:
    """The campaign as YAML. `folder`: the base of its relative paths, which become absolute. `note`: a comment at the top."""
    value = _compat(campaign, folder) if campaign.jobs else _full(campaign, folder)
    if schedule is not None:
        value["schedule"] = schedule.model_dump(mode="json", exclude_defaults=True)
    head = "".join(f"# {line}\n" for line in note.splitlines())
    return head + yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    """Also quotes text that only the campaign reader takes for a number, such as 1e5."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    quoted = "'" if word_value(text) != text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=quoted)


_Dumper.add_representer(str, _text)


def _full(campaign: Campaign, folder: str) -> dict[str, Any]:
    rest = campaign.model_dump(mode="json", exclude_defaults=True, exclude={"models", "schedule", *HIDDEN})
    models = [_model(entry, folder) for entry in campaign.models]
    value = {"campaign": campaign.campaign, "models": models, **rest}
    for name in ("pre", "post"):
        if name in value.get("measure", {}):
            value["measure"][name] = [_step(entry) for entry in getattr(campaign.measure, name)]
    return value


def _model(entry: ModelEntry, folder: str) -> str | dict[str, Any]:
    value = entry.model_dump(mode="json", exclude_defaults=True)
    if entry.path is not None and entry.package is None:
        value["path"] = _absolute(entry.path, folder)
    return str(value["path"]) if list(value) == ["path"] else value


def _absolute(path: str, folder: str) -> str:
    return path if not folder or path.startswith("~") else str(PurePath(folder) / path)


def _step(entry: StepEntry) -> str | dict[str, Any]:
    value = entry.model_dump(mode="json", exclude_defaults=True, exclude={"options"})
    value |= entry.model_dump(mode="json")["options"]
    return entry.step if len(value) == 1 else value


def _compat(campaign: Campaign, folder: str) -> dict[str, Any]:
    """The plain form: one model and its jobs."""
    (entry,) = campaign.models
    value = {
        "campaign": campaign.campaign,
        "model_url": entry.url if entry.path is None else _absolute(entry.path, folder),
        "model_sha256": entry.sha256,
        "model_size": entry.size,
    }
    return {
        **{key: item for key, item in value.items() if item is not None},
        "jobs": [_job(job) for job in campaign.jobs],
    }


def _job(job: JobFields) -> dict[str, Any]:
    value: dict[str, Any] = {"compute_unit": job.unit}
    if job.runs is not None:
        value["num_inference_runs"] = job.runs
    for clause in job.where:
        attribute, _, identity = clause.partition(" == ")
        value[{"device": "device_udid", "peer": "worker_id"}[attribute]] = identity
    return value


_STARTER: Final = """\
# A campaign: which models to measure, on which compute units, on which devices.
#   sark-node validate {file}     checks this file and the models it names
#   sark-node submit {file}       measures them on the devices that can be reached

campaign: {name}               # letters, digits, space and . _ -

models:
  - {model}                   # a path relative to this file's folder
# - name: yolo                         # its name in the results, if not the file's name
#   path: models/tinyyolov2-7.onnx
#   sha256: 8c1f...                    # 64 digits; the file is refused if its hash differs
#   inputs: {{x: [1, 3, 416, 416]}}      # shapes of its inputs, or only sizes: dims: {{H: 416, W: 416}}
# - name: yolo                         # the same model in several numeric types, each measured as "yolo fp32", …
#   variants: {{fp32: yolo.onnx, fp16: yolo-fp16.onnx}}
#   batch: [1, 8]                      # for this model, instead of those of measure
# - name: magika                       # a model in an installed Python package
#   package: magika
#   path: models/standard_v3_3/model.onnx
# - name: resnet                       # fetched once, at submit; or hf://ORG/REPO/FILE@REVISION
#   url: https://example.org/resnet50.onnx

units:                                 # each model runs on each of these
  - CPU (ONNX)
# - GPU (ONNX)
# - GPU (CoreML)
# - Neural Engine (CoreML)

# devices:                             # left out: every device that fits
#   where:                             # clauses that must all be met: attribute operator value
#     - ram >= 8 GiB                   #   == != < <= > >= ~ in has
#     - soc ~ "Apple M*"
#     - label.site == lab
#   spread: device                     # device: every one; class: one of each kind; any: one for each task; worker: every worker
#   limit: 20                          # at most this many devices

measure:
  runs: 100                            # timed inferences, divided among the loads: four or more for each
  loads: 6                             # fresh processes that load the model; with six or more the median has an interval
# precision: 2%                        # instead of both: until the median is known to ± this share, at most 20 loads
# warmup: auto                         # or a number of inferences before the timed ones
# threads: [physical]                  # threads of one inference; [1, 4, physical] makes three tasks
# batch: [1, 8, 32]                    # batch sizes, each a task; models need a dynamic first dimension
# seed: 0                              # seed of the generated inputs
# against: fp32                        # instead of runs and loads: the other variants take turns with this one; or a unit: CPU (ONNX)
# sustain: 10m                         # instead of runs and loads: one launch without a break; burst, knee, steady state, recovery
# over: 2m                             # spread the launches over this time: the interval then holds for all of it
# check: reference                     # compare the outputs with a plain run; or none
# dims: {{batch: 1}}                     # for all models
# pre: [{{step: normalise, of: x, mean: 127.5, std: 127.5}}]   # applied to the generated inputs; post: to the outputs

# replicas: 2                          # run each task on this many devices of one class, and compare their results
# priority: 50                         # 0 to 100, higher goes first
# timeouts: {{queue: 12h, fetch: 5m, load: 1m, run: 5m, campaign: 2h}}
# retry: {{attempts: 3, backoff: 5s}}
"""


def starter_campaign(
    *, name: str = "my-first-campaign", model: str = "model.onnx", file: str = "campaign.yaml"
) -> str:
    """The text of a new campaign file. `name` and `model` must need no quotes in YAML."""
    return _STARTER.format(name=name, model=model, file=file)


SCHEMA_FILE: Final = Path(__file__).with_name("campaign.schema.json")


def campaign_schema() -> dict[str, Any]:
    """The schema of either form of a campaign."""
    references, shared = models_json_schema([(Campaign, "validation"), (PlainCampaign, "validation")])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Sark campaign",
        "description": "Which models to measure, on which compute units, on which devices. sark-node validate checks more than this.",
        "anyOf": [references[Campaign, "validation"], references[PlainCampaign, "validation"]],
        "$defs": shared["$defs"],
    }


def schema_text() -> str:
    """The text of the schema, as in `SCHEMA_FILE`."""
    return json.dumps(campaign_schema(), indent=2, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
