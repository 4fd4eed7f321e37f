"""What a campaign is: the values behind the file that a person writes, checked one by one, frozen.

The models here are the file's form: the JSON Schema is generated from them, and `model_dump_json` / `model_validate_json` keep a
campaign whole. What needs a look at several values at once, or at the lines of a file, is in `campaign.py`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    StringConstraints,
    WithJsonSchema,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from protocol.base import Name, Sha256
from protocol.errors import CampaignError, Refused
from protocol.requirement import Clause, parse_clause
from protocol.task import DimName, VariantName
from protocol.words import Reason
from scheduler.safe import is_safe, safe_text
from swarm.urls import FOR_OWNER, MAX_URL, name_in, read_hf, read_url, scheme_of, travelling, without_secrets

UNITS: Final = (
    "CPU (ONNX)",
    "GPU (ONNX)",
    "DirectML (ONNX)",
    "TensorRT (ONNX)",
    "OpenVINO CPU (ONNX)",
    "OpenVINO GPU (ONNX)",
    "OpenVINO NPU (ONNX)",
    "CoreML (ONNX)",
    "NPU (ONNX)",
    "GPU (CoreML)",
    "Neural Engine (CoreML)",
    "CPU (CoreML)",
    "CPU (Torch)",
    "GPU (Torch)",
    "API (OpenAI)",
    "Fake (Simulation)",
)
"""The compute units that sark-node knows; a driver of one's own may bring others (`load_campaign(..., more_units=…)`)."""

URL_SCHEMES: Final = frozenset({"https", "http", "file", "hf"})
_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h|d)")
_INPUT: Final = re.compile(r"[a-z][a-z0-9]{1,15}\[(?:\w{1,50}(?:, ?\w{1,50}){0,7})?\]", re.ASCII)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
MAX_DURATION_S: Final = 30 * 86400.0


def wrong(what: str, hint: str = "") -> PydanticCustomError:
    """An error of one value, in our words."""
    return PydanticCustomError("campaign", "{what}", {"what": what, "hint": hint})


def parse_duration(value: Any) -> float:
    """Seconds in `500ms`, `90s`, `10m`, `2h`, `1d`. Raises `PydanticCustomError`."""
    hint = "write a number and a unit: 500ms, 90s, 10m, 2h"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise wrong(f"the duration {value} has no unit", hint)
    found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if not found:
        raise wrong(f"{safe_text(repr(value), 60)} is not a duration", hint)
    seconds = float(found[1]) * _SECONDS[found[2]]
    if not 0 < seconds <= MAX_DURATION_S:
        raise wrong(f"the duration {safe_text(found[0])} is out of range", "between 1ms and 30d")
    return seconds


def show_duration(seconds: float) -> str:
    """The inverse of `parse_duration`, in seconds."""
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"


_TIME: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")


def parse_time(value: Any) -> float:
    """Seconds after midnight of `03:00`. Raises `PydanticCustomError`."""
    found = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    if not found:
        raise wrong(
            f"{safe_text(repr(value), 60)} is not a time of the day", "write it as 03:00 or 23:30, in UTC"
        )
    return 3600.0 * int(found[1]) + 60.0 * int(found[2])


def show_time_of_day(seconds: float) -> str:
    """The inverse of `parse_time`."""
    return f"{int(seconds) // 3600:02}:{int(seconds) // 60 % 60:02}"


def check_webhook(text: str) -> str:
    """A URL that a webhook may be sent to. Raises `PydanticCustomError`."""
    try:
        place = read_url(text, FOR_OWNER)
    except Refused as exc:
        raise wrong(f"the webhook cannot be used: {exc.what}", exc.hint) from None
    if place.scheme != "https" and place.host not in _LOOPBACK:
        raise wrong("a webhook goes by https, or to this machine itself", "such as https://example.org/hook")
    return text


_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_PERCENT: Final = re.compile(r"([0-9]{1,2}(?:\.[0-9]{1,6})?)\s*%")
FINEST: Final = 0.001
COARSEST: Final = 0.5


def parse_percent(value: Any) -> float:
    """The share in `2%` or `0.5 %`. Raises `PydanticCustomError`."""
    hint = "write it with its sign: 2%, 0.5%"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise wrong(f"the precision {value} has no percent sign", hint)
    found = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if not found:
        raise wrong(f"{safe_text(repr(value), 60)} is not a percentage", hint)
    share = float(found[1]) / 100
    if not FINEST <= share <= COARSEST:
        raise wrong(
            f"the precision {safe_text(found[0])} is out of range", f"between {FINEST:.1%} and {COARSEST:.0%}"
        )
    return share


def show_percent(share: float) -> str:
    """The inverse of `parse_percent`."""
    return f"{100 * share:.6f}".rstrip("0").rstrip(".") + "%"


def _step(value: Any) -> Any:
    """What stands beside `step` and `of` are the step's options."""
    if isinstance(value, str):
        return {"step": value}
    if not isinstance(value, dict) or "options" in value:
        return value
    own = {key: value[key] for key in value if key in ("step", "of")}
    return {**own, "options": {key: value[key] for key in value if key not in own}}


def _check_clause(text: str) -> str:
    try:
        parse_clause(text)
    except CampaignError as exc:
        raise wrong(exc.what, exc.hint) from exc
    except ValueError as exc:  # a value longer than a clause may carry
        raise wrong(f'cannot read clause "{safe_text(text, 60)}"', "the value is too long") from exc
    return text


def _check_visible(text: str) -> str:
    if not is_safe(text):
        raise wrong("the name holds characters that cannot be seen", "use letters, digits and signs")
    return text


def _check_input(text: str) -> str:
    if not _INPUT.fullmatch(text):
        raise wrong(
            f'"{safe_text(text, 60)}" is not the type and shape of an input',
            "such as float32[1, 3, 224, 224]",
        )
    return text


def _path_is_enough(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return {"url" if scheme_of(value) in URL_SCHEMES or "://" in value else "path": value}


def _check_url(text: str) -> str:
    """What it names is for `models.py` to find; here, whether it can be read at all."""
    scheme = scheme_of(text)
    try:
        if scheme == "hf":
            read_hf(text)
        elif scheme in ("https", "http"):
            read_url(text, FOR_OWNER)
        elif scheme == "file":
            file_of(text)
        else:
            raise wrong(
                f"{safe_text(without_secrets(text), 60)!r} is no URL that can be fetched",
                "write https://…, hf://ORG/REPO/FILE, or for a file of this machine path:",
            )
    except Refused as exc:
        raise wrong(
            f"the URL {safe_text(without_secrets(text), 60)!r} cannot be used: {exc.what}", exc.hint
        ) from None
    return text


def file_of(url: str) -> str:
    """The path in a `file:` URL. Raises `Refused` for one of another machine."""
    parts = urlsplit(url)
    path = url2pathname(parts.path) if parts.path else ""
    if parts.netloc not in ("", "localhost") or not path or "\x00" in unquote(path):
        raise Refused(
            "it names no file of this machine", reason=Reason.BAD_REQUEST, hint="write file:///the/path"
        )
    return path


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(show_duration),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*(ms|s|m|h|d)\s*$",
            "examples": ["500ms", "90s", "10m"],
        }
    ),
]
Percent = Annotated[
    float,
    BeforeValidator(parse_percent),
    PlainSerializer(show_percent),
    WithJsonSchema(
        {"type": "string", "pattern": r"^\s*[0-9]{1,2}(\.[0-9]{1,6})?\s*%\s*$", "examples": ["2%", "0.5%"]}
    ),
]
TimeOfDay = Annotated[
    float,
    BeforeValidator(parse_time),
    PlainSerializer(show_time_of_day),
    WithJsonSchema({"type": "string", "pattern": r"^([01][0-9]|2[0-3]):[0-5][0-9]$", "examples": ["03:00"]}),
]
Webhook = Annotated[str, StringConstraints(min_length=1, max_length=MAX_URL), AfterValidator(check_webhook)]
UrlText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_URL), AfterValidator(_check_url)]
ClauseText = Annotated[str, StringConstraints(max_length=300), AfterValidator(_check_clause)]
UnitName = Annotated[
    str,
    StringConstraints(pattern=r"^[!-~](?:[ -~]{0,98}[!-~])?$"),
    WithJsonSchema({"type": "string", "anyOf": [{"enum": list(UNITS)}, {"pattern": r"^[ -~]{1,100}$"}]}),
]
Dims = Annotated[dict[DimName, Annotated[int, Field(ge=1, le=2**31)]], Field(max_length=64)]
Bytes = Annotated[int, Field(ge=1, le=2**53)]
InputText = Annotated[str, AfterValidator(_check_input)]
Runs = Annotated[int, Field(ge=1, le=1_000_000)]
StepOption = str | bool | int | float | Annotated[tuple[int | float, ...], Field(max_length=64, strict=False)]
Batches = Annotated[
    tuple[Annotated[int, Field(ge=1, le=2**20)], ...], Field(min_length=1, max_length=64, strict=False)
]
Threads = Literal["physical"] | Annotated[int, Field(ge=1, le=8192)]


class Part(BaseModel):
    """Base of the file's parts: frozen, nothing converted by surprise, no unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def _unset(value: object) -> bool:
    """Keys that campaigns of before lack are left out where they are not used: those who know no such key can read the rest."""
    return value is None or value == {}


class VariantEntry(Part):
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


class ModelEntry(Part):
    """A model to be measured: a file, a file inside an installed Python package, or one that is fetched by URL."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [{"required": ["path"]}, {"required": ["url"]}, {"required": ["variants", "name"]}]
        }
    )

    name: (
        Annotated[
            str,
            StringConstraints(pattern=r"^[^\x00-\x1f/\\]+$", max_length=100),
            AfterValidator(_check_visible),
        ]
        | None
    ) = None
    """What rows call it; the file's own name if left out."""
    path: Annotated[str, StringConstraints(min_length=1, max_length=4096)] | None = None
    """Path of the file, from the folder of the campaign; with `package`, from the package's folder."""
    url: UrlText | None = None
    """Where it is fetched from, once, when the campaign is submitted: https:, http:, file: or hf://ORG/REPO/FILE@REVISION. Beside a path:
    where workers may fetch it too."""
    package: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")] | None = None
    """An installed Python package that carries the file, such as magika."""
    sha256: Sha256 | None = None
    """Of the file, in hexadecimal; the campaign is refused when it does not match. Of a URL too."""
    size: Bytes | None = None
    """Of the file, in bytes. With it, a URL and a sha256 nothing is fetched when the campaign is submitted: each device fetches the file
    itself."""
    dims: Dims = {}
    """Sizes of dynamic dimensions by their symbol; they go before those of `measure`."""
    inputs: Annotated[dict[DimName, InputText], Field(max_length=64)] = {}
    """Type and shape of its inputs where its format does not tell them (TorchScript), such as `x: float32[batch, 3, 224, 224]`."""
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
                VariantEntry, BeforeValidator(_path_is_enough, json_schema_input_type=str | VariantEntry)
            ],
        ],
        Field(max_length=32),
    ] = Field(default={}, exclude_if=_unset)
    """The same model in several forms, such as numeric types: `{fp32: a.onnx, int8: b.onnx}`. Each is measured as a model of its own."""

    _place: tuple[str, int | None] = PrivateAttr(default=("", None))

    @property
    def label(self) -> str:
        """Its name, given or taken from the path or the URL, with its variant if it has one."""
        name = self.name or (
            re.split(r"[/\\]", self.path.rstrip("/\\"))[-1] if self.path else name_in(self.url or "")
        )
        return f"{name} {self.variant}" if self.variant else name

    def each(self) -> tuple[ModelEntry, ...]:
        """Itself, or one for each of its variants."""
        if not self.variants:
            return (self,)
        made = []
        for variant, given in self.variants.items():
            update = {**given.model_dump(exclude_none=True), "variant": variant, "variants": {}}
            made.append(self.model_copy(update=update))
        return tuple(made)

    @property
    def public_url(self) -> str | None:
        """What workers are told beside its hash; None: only the submitting machine can use its URL, or there is none."""
        return travelling(self.url) if self.url is not None else None

    @property
    def by_devices(self) -> bool:
        """Whether each device fetches it from its URL: here only its sha256 and size are known."""
        return self.size is not None

    def error(self, what: str, hint: str) -> CampaignError:
        """An error that points at this model in the file it came from."""
        file, line = self._place
        return CampaignError(what, file=file, line=line, hint=hint)


class Devices(Part):
    """Which devices, and on how many of them."""

    where: Annotated[tuple[ClauseText, ...], Field(max_length=24, strict=False)] = ()
    """Clauses, all of which a device must meet: attribute operator value, such as `ram >= 8 GiB`."""
    spread: Literal["any", "class", "device"] = "any"
    """One task for any fitting device, for each distinct class of them, or for every one."""
    limit: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """At most so many devices or classes."""

    def clauses(self) -> tuple[Clause, ...]:
        """`where`, read."""
        return tuple(parse_clause(text) for text in self.where)


class StepEntry(Part):
    """A step before or after the runs; other keys are its options."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    step: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    """Its name, of a closed list."""
    of: Annotated[str, StringConstraints(max_length=500)] = ""
    """The input or output it is done to; left out: all that it can be done to."""
    options: SkipJsonSchema[Annotated[dict[DimName, StepOption], Field(max_length=16)]] = {}


Steps = Annotated[
    tuple[Annotated[StepEntry, BeforeValidator(_step, json_schema_input_type=str | StepEntry)], ...],
    Field(max_length=16, strict=False),
]


class Measuring(Part):
    """How each task is measured."""

    runs: Runs = 100
    """Timed inferences."""
    loads: Annotated[int, Field(ge=1, le=100)] = 6
    """Launches, each in a fresh process that loads the model; the runs are shared out over them."""
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
    """Sizes of dynamic dimensions by their symbol, for all models."""
    batch: Batches | None = Field(default=None, exclude_if=_unset)
    """Sizes of the batch: each is a task of its own, for each model that does not say its own. Left out: one, as the model has it."""
    pre: Steps = ()
    """Done in order to the made inputs, before anything is timed."""
    post: Steps = ()
    """Done in order to the last outputs, when all is timed."""


class Limits(Part):
    """How long each stage may take; whatever runs longer is stopped."""

    queue: Duration = 600.0
    """Waiting for a place on a device, as long as no task with the same needs gets one."""
    fetch: Duration = 300.0
    load: Duration = 60.0
    run: Duration = 300.0
    campaign: Duration | None = None
    """The whole campaign; no limit if left out."""


class Retry(Part):
    """What happens to a task whose attempt failed by no fault of its model."""

    attempts: Annotated[int, Field(ge=1, le=100)] = 3
    backoff: Duration = 5.0


class Schedule(Part):
    """When an experiment runs by itself, and who is told when a result got worse. Read by `sark-node experiment save`."""

    every: Duration
    """From one run to the next, such as 1d."""
    at: TimeOfDay | None = None
    """At this time of the day, in UTC."""
    alarm: Percent | None = None
    """By how much a result must surely be worse to be told as a regression; as little as `compare` tells, if left out."""
    webhook: Webhook | None = None
    """Where a regression is told, by a POST of JSON: https, or this machine itself."""


class Job(Part):
    """One line of the plain form: a unit, and the device it is meant for."""

    unit: UnitName
    runs: Runs | None = None
    where: Annotated[tuple[ClauseText, ...], Field(max_length=2, strict=False)] = ()


class Campaign(Part):
    """A campaign: models × units × threads × batches, on the devices that fit."""

    campaign: Name
    """Its name: letters, digits, space and . _ -"""
    models: Annotated[
        tuple[
            Annotated[ModelEntry, BeforeValidator(_path_is_enough, json_schema_input_type=str | ModelEntry)],
            ...,
        ],
        Field(min_length=1, max_length=10_000, strict=False),
    ]
    """Files to measure, each a path or a mapping."""
    units: Annotated[tuple[UnitName, ...], Field(min_length=1, max_length=64, strict=False)]
    """Compute units by their public names."""
    devices: Devices = Devices()
    measure: Measuring = Measuring()
    replicas: Annotated[int, Field(ge=1, le=16)] = 1
    """Run each task on so many devices of one class, and compare what they found."""
    priority: Annotated[int, Field(ge=0, le=100)] = 50
    """Higher goes first."""
    timeouts: Limits = Limits()
    retry: Retry = Retry()
    schedule: Schedule | None = None
    """When it runs by itself, once it is saved as an experiment."""
    jobs: SkipJsonSchema[Annotated[tuple[Job, ...], Field(max_length=10_000, strict=False)]] = ()
    """From the plain form: these instead of each of `units`. Not a key of this form."""

    def spec(self) -> str:
        """As it is stored, and as devices keep it for whoever carries it on: without the schedule, which is no business of theirs."""
        return self.model_dump_json(exclude={"schedule"})

    def batches(self, entry: ModelEntry) -> tuple[int | None, ...]:
        """Of one of its models; None: as the model has it."""
        return entry.batch or self.measure.batch or (None,)

    def lines(self) -> tuple[Job, ...]:
        """What each model runs on: the plain form's jobs, or one for each unit."""
        return self.jobs or tuple(Job(unit=unit) for unit in self.units)
