"""What a campaign is: the values behind the file that a person writes, checked one by one, frozen.

The models here are the file's form: the JSON Schema is generated from them, and `model_dump_json` / `model_validate_json` keep a
campaign whole. What needs a look at several values at once, or at the lines of a file, is in `campaign.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from protocol.errors import CampaignError
from protocol.formats.frameworks import chosen_format, format_of_name, runs
from protocol.values.advert import FormatWord
from protocol.values.requirement import Clause, parse_clause
from protocol.values.sitting import MAX_SITTINGS
from protocol.values.task import DimName, VariantName
from protocol.values.trust import TrustScope
from protocol.wire.base import Name, Sha256
from scheduler.campaign.destination import ResultsUrl
from scheduler.campaign.fields import (
    Batches,
    Bytes,
    ClauseText,
    Dims,
    Duration,
    EvaluateOption,
    FormatName,
    InputText,
    Percent,
    Runs,
    Spread,
    StepOption,
    Sustained,
    Threads,
    TimeOfDay,
    TrustText,
    UnitName,
    UrlText,
    Webhook,
    check_visible,
    path_is_enough,
    read_against,
    read_step,
)
from scheduler.campaign.trust import scope_of
from swarm.base.text import safe_text
from swarm.download.urls import name_in, travelling

EXAMPLES: Final = ": examples"
"""After a model's name: what its examples are called among the files of a campaign."""


class FilePart(BaseModel):
    """Base of the file's parts: frozen, nothing converted by surprise, no unknown keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        defer_build=True,
    )


_UPLOAD: Final = re.compile(r"(sha256:)?[0-9a-f]{64}")
"""The path of an upload, as it is written and as it is stored."""
APART_S: Final = 3600.0
"""Between two sittings, if the campaign does not say."""


def _unset(value: object) -> bool:
    """Keys that campaigns of before lack are left out where they are not used: those who know no such key can read the rest."""
    return value is None or value == {}


class VariantEntry(FilePart):
    """One form of a model: its file, or where it is fetched from. All else is the model's."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["path"]}, {"required": ["url"]}]})

    path: Annotated[str, StringConstraints(min_length=1, max_length=4096)] | None = None
    """As of a model."""
    url: UrlText | None = None
    """As of a model."""
    sha256: Sha256 | None = None
    """As of a model."""
    size: Bytes | None = None
    """As of a model."""


class EvaluateEntry(FilePart):
    """How well a model answers, besides how fast: it is given examples, and its answers are scored."""

    task: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
    """What reads the data, such as classification; see docs/evaluation.md."""
    data: Annotated[str, StringConstraints(min_length=1, max_length=4096)] | None = None
    """A file or folder, as the task wants it, from the folder of the campaign. Left out: what the task brings, if it brings any."""
    metrics: Annotated[
        tuple[Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,31}$")], ...],
        Field(max_length=64, strict=False),
    ] = ()
    """What scores the answers, such as accuracy; left out: what the task names."""
    options: Annotated[dict[DimName, EvaluateOption], Field(max_length=64)] = {}
    """Of the task."""


class ModelEntry(FilePart):
    """A model to be measured: a file, a file inside an installed Python package, or one that is fetched by URL."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": ["path"]},
                {"required": ["url"]},
                {"required": ["variants", "name"]},
                {"required": ["files", "name"]},
            ]
        }
    )

    name: (
        Annotated[
            str,
            StringConstraints(pattern=r"^[^\x00-\x1f/\\]+$", max_length=100),
            AfterValidator(check_visible),
        ]
        | None
    ) = None
    """What rows call it; the file's own name if left out."""
    path: Annotated[str, StringConstraints(min_length=1, max_length=4096)] | None = None
    """Path of the file, from the folder of the campaign; with `package`, from the package's folder."""
    url: UrlText | None = None
    """Where it is fetched from, once, when the campaign is submitted: https:, http:, file: or hf://ORG/REPO/FILE@REVISION. With a path:
    where workers may fetch it too."""
    package: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")] | None = None
    """An installed Python package that carries the file, such as magika."""
    sha256: Sha256 | None = None
    """Of the file, in hexadecimal; the campaign is refused when it does not match. Of a URL too."""
    size: Bytes | None = None
    """Of the file, in bytes. With it, a URL and a sha256 nothing is fetched when the campaign is submitted: each device fetches the file
    itself."""
    dims: Dims = {}
    """Sizes of dynamic dimensions, by symbol or `input[axis]`; they go before those of `measure`."""
    inputs: Annotated[dict[DimName, InputText], Field(max_length=64)] = {}
    """Shapes of its inputs, such as `x: [1, 3, 48, 320]`; with their types where the format does not tell them (TorchScript), such as
    `x: float32[batch, 3, 224, 224]`."""
    batch: Batches | None = Field(default=None, exclude_if=_unset)
    """Sizes of the batch for this model, in place of those of `measure`; each is a task of its own."""
    batch_dim: DimName | None = Field(default=None, exclude_if=_unset)
    """Which dynamic dimension the batch is: its symbol, or `input[axis]`. Left out: the first one of the inputs."""
    variant: VariantName | None = Field(default=None, exclude_if=_unset)
    """Which form of a model this is, such as int8. Rows call it by the name and this."""
    variants: Annotated[
        dict[
            VariantName,
            Annotated[
                VariantEntry, BeforeValidator(path_is_enough, json_schema_input_type=str | VariantEntry)
            ],
        ],
        Field(max_length=32),
    ] = Field(default={}, exclude_if=_unset)
    """The same model in several forms, such as numeric types: `{fp32: a.onnx, int8: b.onnx}`. Each is measured as a model of its own."""
    files: Annotated[
        dict[
            FormatName,
            Annotated[
                VariantEntry, BeforeValidator(path_is_enough, json_schema_input_type=str | VariantEntry)
            ],
        ],
        Field(max_length=32),
    ] = Field(default={}, exclude_if=_unset)
    """The same model in several formats: `{onnx: m.onnx, tflite: m.tflite}`. Each unit measures the file that it can run; all are rows of
    one model."""
    format: FormatName | None = Field(default=None, exclude_if=_unset)
    """The format of its file, where the name does not tell."""
    units: Annotated[tuple[UnitName, ...], Field(min_length=1, max_length=64, strict=False)] | None = Field(
        default=None, exclude_if=_unset
    )
    """Compute units for this model, in place of those of the campaign."""
    evaluate: EvaluateEntry | None = Field(default=None, exclude_if=_unset)
    """Examples that it answers once on each device, after it was timed, and how its answers are scored."""

    _place: tuple[str, int | None] = PrivateAttr(default=("", None))

    @property
    def label(self) -> str:
        """Its name, given or taken from the path or the URL, with its variant if it has one."""
        name = self.name or (
            re.split(r"[/\\]", self.path.rstrip("/\\"))[-1] if self.path else name_in(self.url or "")
        )
        return f"{name} {self.variant}" if self.variant else name

    @property
    def key(self) -> str:
        """What tells it apart from all others of a campaign: its label, and its format where the label is that of several files."""
        return f"{self.label} ({self.format})" if self.format else self.label

    @property
    def title(self) -> str:
        """`model 'yolo int8'`, for messages."""
        return f"model {safe_text(self.key, 60)!r}"

    @property
    def known_format(self) -> str | None:
        """The format of its file, as far as the campaign tells: of an upload, its name."""
        uploaded = self.path is not None and _UPLOAD.fullmatch(self.path) is not None
        file = self.name if uploaded else self.path or name_in(self.url or "")
        return self.format or format_of_name(file or "")

    def each(self) -> tuple[ModelEntry, ...]:
        """Itself, or one for each of its variants or files."""
        if self.files:
            return tuple(
                self.model_copy(update={**file.model_dump(exclude_none=True), "format": form, "files": {}})
                for form, file in self.files.items()
            )
        if not self.variants:
            return (self,)
        forms = ((variant, form.model_dump(exclude_none=True)) for variant, form in self.variants.items())
        return tuple(
            self.model_copy(update={**form, "variant": variant, "variants": {}}) for variant, form in forms
        )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of `inputs`, those that are shapes alone."""
        return {name: shape for name, shape in self.inputs.items() if not isinstance(shape, str)}

    @property
    def declared(self) -> dict[str, str]:
        """Of `inputs`, those with a type."""
        return {name: form for name, form in self.inputs.items() if isinstance(form, str)}

    @property
    def public_url(self) -> str | None:
        """The URL that workers get with its hash; None: only the submitting machine can use its URL, or there is none."""
        return travelling(self.url) if self.url is not None else None

    @property
    def examples_key(self) -> str:
        """What its examples are called among the files of a campaign."""
        return f"{self.key}{EXAMPLES}"

    @property
    def by_devices(self) -> bool:
        """Whether each device fetches it from its URL: here only its sha256 and size are known."""
        return self.size is not None

    def error(self, what: str, hint: str) -> CampaignError:
        """An error that points at this model in the file it came from."""
        file, line = self._place
        return CampaignError(what, file=file, line=line, hint=hint)


class Devices(FilePart):
    """Which devices, and on how many of them."""

    where: Annotated[tuple[ClauseText, ...], Field(max_length=24, strict=False)] = ()
    """Clauses, all of which a device must meet: attribute operator value, such as `ram >= 8 GiB`."""
    spread: Literal["any", "class", "device", "worker"] = "device"
    """One task for every fitting device, for each distinct class of them, for any one, or for every worker, also where several share a
    machine. With replicas: any, if left out."""
    limit: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """At most so many devices, classes or workers."""
    trust: TrustText = Field(default="mine", exclude_if=lambda trust: trust == "mine")
    """Whose devices: `mine`, those of this home, of its pools and those listed with `sark-node trust`; these and the peer ids of a list; or
    `anyone`: strangers get the model then, and may invent results. A clause `peer == ID` names that peer too."""

    def clauses(self) -> tuple[Clause, ...]:
        """`where`, read."""
        return tuple(parse_clause(text) for text in self.where)


class StepEntry(FilePart):
    """A step before or after the runs; other keys are its options."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    step: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    """Its name, of a closed list."""
    of: Annotated[str, StringConstraints(max_length=500)] = ""
    """The input or output it is done to; left out: all that it can be done to."""
    options: SkipJsonSchema[Annotated[dict[DimName, StepOption], Field(max_length=16)]] = {}


Steps = Annotated[
    tuple[Annotated[StepEntry, BeforeValidator(read_step, json_schema_input_type=str | StepEntry)], ...],
    Field(max_length=16, strict=False),
]


class AgainstEntry(FilePart):
    """What the models of a campaign take turns with and are compared with: a model, a unit, or a model on a unit."""

    model: Annotated[str, StringConstraints(min_length=1, max_length=140)] | None = None
    """A model, a variant, `first` or `reference`; left out: each model is compared with itself on another unit. Alone it may be a unit."""
    unit: UnitName | None = None
    """The compute unit that the others are compared with; left out: each is compared on its own unit."""

    @model_serializer(mode="plain")
    def _as_written(self) -> Any:
        values = {name: value for name in ("model", "unit") if (value := getattr(self, name)) is not None}
        return values.get("model") if self.unit is None else values


class MeasureFields(FilePart):
    """How each task is measured."""

    runs: Runs = 100
    """Timed inferences."""
    loads: Annotated[int, Field(ge=1, le=100)] = 6
    """Launches, each in a fresh process that loads the model; the runs are shared out over them. Fewer than four runs for each are all made
    in the first, and the row is few-runs."""
    precision: Percent | None = None
    """Instead of runs and loads: launch until the median is known within so much either way, or say that it is not."""
    warmup: Literal["auto"] | Annotated[int, Field(ge=0, le=100_000)] = "auto"
    """Inferences before the timed ones; auto: until they have settled."""
    threads: Annotated[tuple[Threads, ...], Field(min_length=1, max_length=64, strict=False)] = ("physical",)
    """Threads of one inference; each entry is a task of its own."""
    seed: Annotated[int, Field(ge=0, le=2**32)] = 0
    """Of the made inputs."""
    check: Literal["reference", "none"] = "reference"
    """Compare the outputs with a plain reference run, or do not."""
    dims: Dims = {}
    """Sizes of dynamic dimensions, by symbol or `input[axis]`, for all models that have them."""
    batch: Batches | None = Field(default=None, exclude_if=_unset)
    """Sizes of the batch: each is a task of its own, for each model that does not say its own. Left out: one, as the model has it."""
    pre: Steps = ()
    """Done in order to the made inputs, before anything is timed."""
    post: Steps = ()
    """Done in order to the last outputs, when all is timed."""
    against: (
        Annotated[AgainstEntry, BeforeValidator(read_against, json_schema_input_type=str | AgainstEntry)]
        | None
    ) = Field(default=None, exclude_if=_unset)
    """What the others take turns with on the same device, and are compared with: a model or a variant (`first` is the first variant of each
    model, `reference` a model that comes with the program), a compute unit, or both as `{model: NAME, unit: UNIT}`. It measures until the
    comparison is decided, in place of runs and loads."""
    sustain: Sustained | None = Field(default=None, exclude_if=_unset)
    """Instead of runs and loads: infer without a break for so long, such as 10m, then rest and see whether the device is as quick again."""
    over: Spread | None = Field(default=None, exclude_if=_unset)
    """Spread the launches over so long, such as 2m, with gaps between them: the interval then holds for that time and not for a few
    seconds. With precision the first six are spread, and more follow at the same pace."""
    compute_type: Literal["f32"] | None = Field(default=None, exclude_if=_unset)
    """f32: a runtime that may choose to compute with fewer digits, as OpenVINO does, computes in float32. Left out: as it chooses."""
    sittings: Annotated[int, Field(ge=1, le=MAX_SITTINGS)] = Field(
        default=1, exclude_if=lambda number: number == 1
    )
    """Measure each task this many times on its device, at different times. The median over them then holds for the device, not only for a
    few seconds."""
    apart: Duration | None = Field(default=None, exclude_if=_unset)
    """Least time from the end of one sitting to the start of the next. Default: 1h."""

    @property
    def apart_s(self) -> float:
        return APART_S if self.apart is None else self.apart

    @property
    def gaps_s(self) -> float:
        """What lies between the sittings of a task in all, at least."""
        return (self.sittings - 1) * self.apart_s


class CampaignLimits(FilePart):
    """How long each stage may take; whatever runs longer is stopped."""

    queue: Duration = 43_200.0
    """Waiting for a place on a device, as long as no task with the same needs gets one."""
    fetch: Duration = 300.0
    load: Duration = 60.0
    run: Duration = 300.0
    campaign: Duration | None = None
    """The whole campaign; no limit if left out."""


class Retry(FilePart):
    """What happens to a task whose attempt failed by no fault of its model."""

    attempts: Annotated[int, Field(ge=1, le=100)] = 3
    backoff: Duration = 5.0


class Schedule(FilePart):
    """When an experiment runs by itself, and who is notified when a result got worse. Read by `sark-node experiment save`."""

    every: Duration
    """From one run to the next, such as 1d."""
    at: TimeOfDay | None = None
    """At this time of the day, in UTC."""
    alarm: Percent | None = None
    """By how much a result must surely be worse to count as a regression; the margin of `compare`, if left out."""
    webhook: Webhook | None = None
    """Where a regression is reported, by a POST of JSON: https, or this machine itself."""


class JobFields(FilePart):
    """One line of the plain form: a unit, and the device it is meant for."""

    unit: UnitName
    runs: Runs | None = None
    where: Annotated[tuple[ClauseText, ...], Field(max_length=2, strict=False)] = ()


class Campaign(FilePart):
    """A campaign: models × units × threads × batches, on the devices that fit."""

    campaign: Name
    """Its name: letters, digits, space and . _ -"""
    models: Annotated[
        tuple[
            Annotated[ModelEntry, BeforeValidator(path_is_enough, json_schema_input_type=str | ModelEntry)],
            ...,
        ],
        Field(min_length=1, max_length=10_000, strict=False),
    ]
    """Files to measure, each a path or a mapping."""
    units: Annotated[tuple[UnitName, ...], Field(min_length=1, max_length=64, strict=False)] = ()
    """Compute units by their public names; of models that do not name their own."""
    devices: Devices = Devices()
    measure: MeasureFields = MeasureFields()
    replicas: Annotated[int, Field(ge=1, le=16)] = 1
    """Run each task on so many devices of one class, and compare what they found."""
    priority: Annotated[int, Field(ge=0, le=100)] = 50
    """Higher goes first."""
    timeouts: CampaignLimits = CampaignLimits()
    retry: Retry = Retry()
    schedule: Schedule | None = None
    """When it runs by itself, once it is saved as an experiment."""
    results: ResultsUrl | None = Field(default=None, exclude_if=_unset)
    """Where the results are written as well once it has ended: an fsspec URL, such as s3://bucket/prefix. Devices do not see it."""
    jobs: SkipJsonSchema[Annotated[tuple[JobFields, ...], Field(max_length=10_000, strict=False)]] = ()
    """From the plain form: these instead of each of `units`. Not a key of this form."""
    unit_formats: SkipJsonSchema[
        Annotated[
            dict[UnitName, Annotated[tuple[FormatWord, ...], Field(strict=False)]], Field(max_length=64)
        ]
    ] = Field(default={}, exclude_if=_unset)
    """Of units of drivers of somebody else's: the formats that they took when the file was read, as far as they said. Not a key of it."""

    _formats_of: tuple[object, dict[str, tuple[str, ...]]] = PrivateAttr(default=(None, {}))

    @model_validator(mode="before")
    @classmethod
    def _spread_of_replicas(cls, value: Any) -> Any:
        """Replicas say themselves on how many devices a task runs."""
        if not isinstance(value, dict) or value.get("replicas", 1) == 1:
            return value
        devices = value.get("devices", {})
        if isinstance(devices, Devices):
            unset = "spread" not in devices.model_fields_set
            return {**value, "devices": devices.model_copy(update={"spread": "any"})} if unset else value
        return {**value, "devices": {"spread": "any", **devices}} if isinstance(devices, dict) else value

    def spec(self) -> str:
        """As it is stored, and as devices keep it for whoever carries it on: without the schedule, which is no business of theirs."""
        return self.model_dump_json(exclude={"schedule"} if self.units else {"schedule", "units"})

    def each(self) -> Campaign:
        """The same with a model for each variant and file."""
        return self.model_copy(update={"models": tuple(one for entry in self.models for one in entry.each())})

    def batches(self, entry: ModelEntry) -> tuple[int | None, ...]:
        """Of one of its models; None: as the model has it."""
        return entry.batch or self.measure.batch or (None,)

    @property
    def trust(self) -> TrustScope:
        """Whom it uses; a peer that the clauses of a task name comes on top for that task."""
        return scope_of(self.devices.trust)

    def lines(self) -> tuple[JobFields, ...]:
        """What any of its models runs on: the plain form's jobs, or one for each unit."""
        own = (unit for entry in self.models for unit in entry.units or ())
        return self.jobs or tuple(JobFields(unit=unit) for unit in dict.fromkeys((*self.units, *own)))

    def lines_of(self, entry: ModelEntry) -> tuple[JobFields, ...]:
        """What this model runs on: units that run no model of its format are left out, and of a model with several files those that
        measure another of them. Jobs of the plain form stay.
        """
        if self.jobs:
            return self.jobs
        forms = self._formats().get(entry.label, ()) if entry.format else ()
        return tuple(
            JobFields(unit=unit)
            for unit in self.units_of(entry)
            if self.runs(unit, entry.known_format)
            and chosen_format(unit, forms, self.unit_formats) in (None, entry.format)
        )

    def runs(self, unit: str, form: str | None) -> bool:
        """Whether a unit may run a model in this format. None: it is not known."""
        return runs(unit, form, self.unit_formats)

    def _formats(self) -> Mapping[str, tuple[str, ...]]:
        """The formats of each model that has one file for each, by label. Copies with other models have their own."""
        models, formats = self._formats_of
        if models is not self.models:
            formats = {}
            for entry in self.models:
                if entry.format:
                    formats[entry.label] = (*formats.get(entry.label, ()), entry.format)
            self._formats_of = self.models, formats
        return formats

    def units_of(self, entry: ModelEntry) -> tuple[str, ...]:
        """The units that are named for this model, whether they run its format or not."""
        return entry.units or self.units

    def left_out(self, entry: ModelEntry) -> tuple[str, ...]:
        """The units that `lines_of` leaves out."""
        units = () if self.jobs else self.units_of(entry)
        return tuple(unit for unit in units if not self.runs(unit, entry.known_format))
