"""The plain form of a campaign, as used with the predecessor, read into the same `Campaign`.

    {"model_url": "model.onnx", "jobs": [{"compute_unit": "CPU (ONNX)", "num_inference_runs": 10}]}

`device_udid` becomes the clause `device == …`, `worker_id` the clause `peer == …`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints, ValidationError

from protocol.wire.base import Name, Sha256
from scheduler.campaign.errors import first_found
from scheduler.campaign.fields import Bytes, Runs, UnitName, check_place
from scheduler.campaign.model import Campaign, Devices, FilePart, JobFields, ModelEntry
from swarm.base.yaml import Document
from swarm.download.urls import scheme_of

Word = Annotated[str, StringConstraints(pattern=r"^[!-~](?:[ -~]{0,118}[!-~])?$")]


class PlainJob(FilePart):
    """One unit to run the model on."""

    compute_unit: UnitName
    num_inference_runs: Runs = 100
    """Number of timed inferences."""
    device_udid: Word | None = None
    """Hardware id of the device that must run the job."""
    worker_id: Word | None = None
    """Peer id of the worker that must run the job."""


class PlainCampaign(FilePart):
    """One model and the jobs to run with it."""

    campaign: Name | None = None
    """Name of the campaign. Default: the model's name."""
    model_url: Annotated[str, StringConstraints(min_length=1, max_length=4096), AfterValidator(check_place)]
    """Path of the model's file, relative to the campaign file's folder, or a URL: https:, http:, file: or hf://ORG/REPO/FILE."""
    model_sha256: Sha256 | None = None
    """SHA-256 of the model's file, in hexadecimal. The campaign is refused if the file does not match."""
    model_size: Bytes | None = None
    """Size of the model's file, in bytes. With a URL and `model_sha256`, nothing is downloaded when the campaign is submitted: each device
    downloads the file itself."""
    jobs: Annotated[tuple[PlainJob, ...], Field(min_length=1, max_length=10_000, strict=False)]


def is_plain(value: Mapping[str, Any]) -> bool:
    """Whether the file is in the plain form."""
    return "model_url" in value or ("jobs" in value and "models" not in value)


def read_plain(document: Document) -> Campaign:
    """The campaign in a plain-form document. Raises `CampaignError`."""
    try:
        plain = PlainCampaign.model_validate(document.value)
    except ValidationError as exc:
        raise first_found(exc, document, PlainCampaign) from None
    place = "url" if scheme_of(plain.model_url) else "path"
    entry = ModelEntry.model_validate(
        {place: plain.model_url, "sha256": plain.model_sha256, "size": plain.model_size}
    )
    jobs = tuple(_job(job) for job in plain.jobs)
    name = plain.campaign or re.sub(r"[^A-Za-z0-9._-]+", "-", entry.label).strip("-._")[:64] or "campaign"
    return Campaign(
        campaign=name,
        models=(entry,),
        units=tuple(dict.fromkeys(job.unit for job in jobs)),
        devices=Devices(spread="any"),
        jobs=jobs,
    )


def _job(job: PlainJob) -> JobFields:
    where = []
    if job.device_udid is not None:
        where.append(f"device == {job.device_udid}")
    if job.worker_id is not None:
        where.append(f"peer == {job.worker_id}")
    return JobFields(unit=job.compute_unit, runs=job.num_inference_runs, where=tuple(where))
