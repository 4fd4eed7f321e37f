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
    """Base of the file's parts: frozen, strictly typed, and without unknown keys."""

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
    """One file of a model, by path or URL, for one variant or format. All other keys are the model's."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["path"]}, {"required": ["url"]}]})

    path: Annotated[str, StringConstraints(min_length=1, max_length=4096)] | None = None
    """Path of the file, like a model's `path`."""
    url: UrlText | None = None
    """URL of the file, like a model's `url`."""
    sha256: Sha256 | None = None
    """SHA-256 of the file, like a model's `sha256`."""
    size: Bytes | None = None
    """Size of the file in bytes, like a model's `size`."""


class EvaluateEntry(FilePart):
    """How the quality of a model's answers is measured, in addition to its speed: the model answers examples, and its answers are
    scored."""

    task: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
    """Name of the evaluation task, which reads the data, such as classification; see docs/evaluation.md."""
    data: Annotated[str, StringConstraints(min_length=1, max_length=4096)] | None = None
    """File or folder with the examples, in the form that the task requires, relative to the campaign file's folder. Default: the task's own
    data, if it has any."""
    metrics: Annotated[
        tuple[Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,31}$")], ...],
        Field(max_length=64, strict=False),
    ] = ()
    """Metrics that score the answers, such as accuracy. Default: the task's own metrics."""
    options: Annotated[dict[DimName, EvaluateOption], Field(max_length=64)] = {}
    """Options of the task."""


class ModelEntry(FilePart):
    """A model to measure: a file, a file inside an installed Python package, or a file that is downloaded from a URL."""

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
    """Name of the model in the results. Default: the name of the file."""
    path: Annotated[str, StringConstraints(min_length=1, max_length=4096)] | None = None
    """Path of the file, relative to the campaign file's folder or, with `package`, to the package's folder."""
    url: UrlText | None = None
    """URL from which the file is downloaded once, when the campaign is submitted: https:, http:, file: or hf://ORG/REPO/FILE@REVISION. With
    `path`, a URL from which workers may download the file too."""
    package: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")] | None = None
    """Installed Python package that contains the file, such as magika."""
    sha256: Sha256 | None = None
    """SHA-256 of the file, in hexadecimal. The campaign is refused if the file, or the file at the URL, does not match."""
    size: Bytes | None = None
    """Size of the file, in bytes. With `size`, `url` and `sha256`, nothing is downloaded when the campaign is submitted: each device
    downloads the file itself."""
    dims: Dims = {}
    """Sizes of dynamic dimensions, by symbol or `input[axis]`. They take precedence over those of `measure`."""
    inputs: Annotated[dict[DimName, InputText], Field(max_length=64)] = {}
    """Shapes of the inputs, such as `x: [1, 3, 48, 320]`. If the format does not state the types (TorchScript), types and shapes, such as
    `x: float32[batch, 3, 224, 224]`."""
    batch: Batches | None = Field(default=None, exclude_if=_unset)
    """Batch sizes for this model, instead of those of `measure`. Each makes a task of its own."""
    batch_dim: DimName | None = Field(default=None, exclude_if=_unset)
    """Dynamic dimension that is the batch: its symbol, or `input[axis]`. Default: the first dimension of the inputs."""
    variant: VariantName | None = Field(default=None, exclude_if=_unset)
    """Variant of the model, such as int8. In the results, it follows the model's name."""
    variants: Annotated[
        dict[
            VariantName,
            Annotated[
                VariantEntry, BeforeValidator(path_is_enough, json_schema_input_type=str | VariantEntry)
            ],
        ],
        Field(max_length=32),
    ] = Field(default={}, exclude_if=_unset)
    """Variants of the model, such as numeric types: `{fp32: a.onnx, int8: b.onnx}`. Each is measured as a model of its own."""
    files: Annotated[
        dict[
            FormatName,
            Annotated[
                VariantEntry, BeforeValidator(path_is_enough, json_schema_input_type=str | VariantEntry)
            ],
        ],
        Field(max_length=32),
    ] = Field(default={}, exclude_if=_unset)
    """The same model in several formats: `{onnx: m.onnx, tflite: m.tflite}`. Each unit measures the file that it can run. All rows belong
    to one model."""
    format: FormatName | None = Field(default=None, exclude_if=_unset)
    """Format of the file, if its name does not show it."""
    units: Annotated[tuple[UnitName, ...], Field(min_length=1, max_length=64, strict=False)] | None = Field(
        default=None, exclude_if=_unset
    )
    """Compute units for this model, instead of those of the campaign."""
    evaluate: EvaluateEntry | None = Field(default=None, exclude_if=_unset)
    """Examples that the model answers once on each device, after it was timed, and how its answers are scored."""

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
    """Which devices, and how many of them."""

    where: Annotated[tuple[ClauseText, ...], Field(max_length=24, strict=False)] = ()
    """Clauses that a device must all meet: attribute operator value, such as `ram >= 8 GiB`."""
    spread: Literal["any", "class", "device", "worker"] = "device"
    """Devices that the tasks are spread over. device: every matching device; class: one device of each class; any: one device for each
    task; worker: every worker, even if several share a machine. Default: device; with replicas, any."""
    limit: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Maximum number of devices, classes or workers."""
    trust: TrustText = Field(default="mine", exclude_if=lambda trust: trust == "mine")
    """Devices that may get tasks. `mine`: the devices of this home and its pools, and those listed with `sark-node trust`. A list of peer
    ids: these in addition. `anyone`: strangers too, which then get the model and may invent results. A clause `peer == ID` also names a
    peer."""

    def clauses(self) -> tuple[Clause, ...]:
        """`where`, read."""
        return tuple(parse_clause(text) for text in self.where)


class StepEntry(FilePart):
    """A step before or after the runs. Keys other than `step` and `of` are its options."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    step: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    """Name of the step, from a closed list."""
    of: Annotated[str, StringConstraints(max_length=500)] = ""
    """Name of the input or output that the step processes. Required if there are several."""
    options: SkipJsonSchema[Annotated[dict[DimName, StepOption], Field(max_length=16)]] = {}


Steps = Annotated[
    tuple[Annotated[StepEntry, BeforeValidator(read_step, json_schema_input_type=str | StepEntry)], ...],
    Field(max_length=16, strict=False),
]


class AgainstEntry(FilePart):
    """The base that the models of a campaign take turns with and are compared with: a model, a unit, or a model on a unit."""

    model: Annotated[str, StringConstraints(min_length=1, max_length=140)] | None = None
    """Model, variant, `first` or `reference`. If left out, each model is compared with itself on another unit. Without `unit`, this may
    also be a unit."""
    unit: UnitName | None = None
    """Compute unit on which the base runs. Default: each model is compared on its own unit."""

    @model_serializer(mode="plain")
    def _as_written(self) -> Any:
        values = {name: value for name in ("model", "unit") if (value := getattr(self, name)) is not None}
        return values.get("model") if self.unit is None else values


class MeasureFields(FilePart):
    """How each task is measured."""

    runs: Runs = 100
    """Number of timed inferences."""
    loads: Annotated[int, Field(ge=1, le=100)] = 6
    """Number of launches, each in a fresh process that loads the model. The runs are divided among them. If there are fewer than four runs
    for each, the first launch makes all runs, and the verdict is few-runs."""
    precision: Percent | None = None
    """Precision to reach, instead of runs and loads: launches continue until the median is known to ± this share, or the row says that it
    is not."""
    warmup: Literal["auto"] | Annotated[int, Field(ge=0, le=100_000)] = "auto"
    """Number of inferences before the timed ones. auto: until the times have settled."""
    threads: Annotated[tuple[Threads, ...], Field(min_length=1, max_length=64, strict=False)] = ("physical",)
    """Numbers of threads for one inference. Each makes a task of its own. physical: one for each physical core."""
    seed: Annotated[int, Field(ge=0, le=2**32)] = 0
    """Seed of the generated inputs."""
    check: Literal["reference", "none"] = "reference"
    """Whether the outputs are compared with a plain reference run (reference) or not (none)."""
    dims: Dims = {}
    """Sizes of dynamic dimensions, by symbol or `input[axis]`, for all models that have them."""
    batch: Batches | None = Field(default=None, exclude_if=_unset)
    """Batch sizes, for each model that does not state its own. Each makes a task of its own. Default: one task, with the model's own
    batch."""
    pre: Steps = ()
    """Steps that process the generated inputs, in this order, before anything is timed."""
    post: Steps = ()
    """Steps that process the last outputs, in this order, after everything was timed."""
    against: (
        Annotated[AgainstEntry, BeforeValidator(read_against, json_schema_input_type=str | AgainstEntry)]
        | None
    ) = Field(default=None, exclude_if=_unset)
    """Base that the other models take turns with on the same device and are compared with: a model or a variant (`first` is the first
    variant of each model, `reference` a model that comes with the program), a compute unit, or both as `{model: NAME, unit: UNIT}`. Instead
    of runs and loads, measuring continues until the comparison is decided."""
    sustain: Sustained | None = Field(default=None, exclude_if=_unset)
    """Time for which to infer without a break, such as 10m, instead of runs and loads. The device then rests, and the run checks whether it
    is as fast again."""
    over: Spread | None = Field(default=None, exclude_if=_unset)
    """Time over which to spread the launches, such as 2m, with gaps between them. The interval then holds for that time and not just for a
    few seconds. With precision, the first six launches are spread, and more follow at the same pace."""
    compute_type: Literal["f32"] | None = Field(default=None, exclude_if=_unset)
    """Numeric type in which to compute. f32: float32, even if the runtime, such as OpenVINO, would choose a less precise type. Default: the
    runtime's choice."""
    sittings: Annotated[int, Field(ge=1, le=MAX_SITTINGS)] = Field(
        default=1, exclude_if=lambda number: number == 1
    )
    """Number of times to measure each task on its device, at different times. The median over them then holds for the device, not just for
    a few seconds."""
    apart: Duration | None = Field(default=None, exclude_if=_unset)
    """Minimum time from the end of one sitting to the start of the next. Default: 1h."""

    @property
    def apart_s(self) -> float:
        return APART_S if self.apart is None else self.apart

    @property
    def gaps_s(self) -> float:
        """What lies between the sittings of a task in all, at least."""
        return (self.sittings - 1) * self.apart_s


class CampaignLimits(FilePart):
    """Time limits of the stages. Whatever exceeds its limit is stopped."""

    queue: Duration = 43_200.0
    """Maximum wait for a place on a device, while no task with the same requirement gets one."""
    fetch: Duration = 300.0
    load: Duration = 60.0
    run: Duration = 300.0
    campaign: Duration | None = None
    """Time limit of the whole campaign. Default: none."""


class Retry(FilePart):
    """What happens to a task whose attempt failed without its model being at fault."""

    attempts: Annotated[int, Field(ge=1, le=100)] = 3
    backoff: Duration = 5.0


class Schedule(FilePart):
    """When an experiment runs automatically, and who is notified when a result gets worse. `sark-node experiment save` reads it."""

    every: Duration
    """Time from one run to the next, such as 1d."""
    at: TimeOfDay | None = None
    """Time of day, in UTC."""
    alarm: Percent | None = None
    """Smallest certain deterioration that counts as a regression. Default: the margin of `compare`."""
    webhook: Webhook | None = None
    """URL to which regressions are sent, by a POST of JSON: https, or a URL of this machine."""


class JobFields(FilePart):
    """One line of the plain form: a unit, and the device it is meant for."""

    unit: UnitName
    runs: Runs | None = None
    where: Annotated[tuple[ClauseText, ...], Field(max_length=2, strict=False)] = ()


class Campaign(FilePart):
    """A campaign: models × units × threads × batches, on the devices that fit."""

    campaign: Name
    """Name of the campaign: letters, digits, space and . _ -"""
    models: Annotated[
        tuple[
            Annotated[ModelEntry, BeforeValidator(path_is_enough, json_schema_input_type=str | ModelEntry)],
            ...,
        ],
        Field(min_length=1, max_length=10_000, strict=False),
    ]
    """Models to measure, each a path, a URL or a mapping."""
    units: Annotated[tuple[UnitName, ...], Field(min_length=1, max_length=64, strict=False)] = ()
    """Public names of the compute units, for models that do not name their own."""
    devices: Devices = Devices()
    measure: MeasureFields = MeasureFields()
    replicas: Annotated[int, Field(ge=1, le=16)] = 1
    """Number of devices of one class that run each task. Their results are compared."""
    priority: Annotated[int, Field(ge=0, le=100)] = 50
    """Priority of the campaign. Higher goes first."""
    timeouts: CampaignLimits = CampaignLimits()
    retry: Retry = Retry()
    schedule: Schedule | None = None
    """When the campaign runs automatically, once it is saved as an experiment."""
    results: ResultsUrl | None = Field(default=None, exclude_if=_unset)
    """Where the results are also written after the campaign has ended: an fsspec URL, such as s3://bucket/prefix. Devices do not see it."""
    jobs: SkipJsonSchema[Annotated[tuple[JobFields, ...], Field(max_length=10_000, strict=False)]] = ()
    """Jobs of the plain form, which replace `units`. Not a key of this form."""
    unit_formats: SkipJsonSchema[
        Annotated[
            dict[UnitName, Annotated[tuple[FormatWord, ...], Field(strict=False)]], Field(max_length=64)
        ]
    ] = Field(default={}, exclude_if=_unset)
    """Formats that units of third-party drivers took when the file was read, as far as they advertised them. Not a key of the file."""

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
