"""What a scheduler asks a worker to do: the signed task. Also, where its model comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints, model_validator

from protocol.formats.spread import MAX_OVER_S, MIN_OVER_S
from protocol.formats.sustain import MAX_SUSTAIN_S, MIN_SUSTAIN_S
from protocol.values.requirement import Requirement
from protocol.values.rounds import MAX_TOGETHER
from protocol.values.sitting import Sitting
from protocol.wire.base import Count, Detail, Id, Line, Message, PeerName, Seconds, Sha256
from protocol.wire.codec import pack, read_value

MAX_TASK: Final = 16 * 1024
_CONTEXT: Final = b"sark task 1\n"

DimName = Annotated[str, StringConstraints(min_length=1, max_length=100)]
InputForm = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]{1,15}\[[A-Za-z0-9_, ]{0,450}\]$")]
"""Type and shape of an input, such as `float32[batch, 3, 224, 224]`."""
InputSize = Annotated[int, Field(ge=0, le=2**31)]
InputShape = Annotated[tuple[InputSize, ...], Field(max_length=64)]
UrlText = Annotated[str, StringConstraints(pattern=r"^https?://[!-~]{1,2040}$")]
VariantName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$")]
"""Which variant of a model, such as `fp16`."""
FileName = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f/\\]{1,200}$")]


class Model(Message):
    """A model by its content."""

    name: FileName
    """File name for users and rows; never used as a path."""
    sha256: Sha256
    size: Count
    variant: VariantName | None = None
    """The variant, such as `int8`, with which the name then ends. None: there is only one."""


StepValue = str | bool | int | float | Annotated[tuple[int | float, ...], Field(max_length=64)]


class Step(Message):
    """One step before or after the runs, from the closed list that drivers know."""

    step: Line
    of: Annotated[str, StringConstraints(max_length=500)] = ""
    """The input or output that it applies to; empty: the only one."""
    options: Annotated[dict[DimName, StepValue], Field(max_length=16)] = {}


class Measure(Message):
    """How to measure the model."""

    runs: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    loads: Annotated[int, Field(ge=1, le=100)] = 6
    """Number of launches that share the runs."""
    precision: Annotated[float, Field(gt=0, le=1)] | None = None
    """Instead of runs and loads: measure until the interval of the median is within ± this share of it."""
    warmup: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """Inferences before the timed ones; None: until settled."""
    threads: Annotated[int, Field(ge=1, le=8192)] | None = None
    """None: as many as physical cores."""
    dims: Annotated[dict[DimName, InputSize], Field(max_length=64)] = {}
    """Sizes of dynamic dimensions, by symbol or `input[axis]`."""
    batch: Annotated[int, Field(ge=1, le=2**20)] | None = None
    """Size of the batch; None: as given by the model, `dims` and `shapes`, else 1."""
    batch_dim: DimName | None = None
    """Which dynamic dimension is the batch; None: the first one of the inputs."""
    inputs: Annotated[dict[DimName, InputForm], Field(max_length=64)] = {}
    """For models in formats that do not describe their inputs (TorchScript)."""
    seed: Annotated[int, Field(ge=0, le=2**32)] = 0
    check: bool = True
    pre: Annotated[tuple[Step, ...], Field(max_length=16)] = ()
    """Applied to the generated inputs before the model is loaded."""
    post: Annotated[tuple[Step, ...], Field(max_length=16)] = ()
    """Applied to the last outputs after all timing."""
    shapes: Annotated[dict[DimName, InputShape], Field(max_length=64)] = {}
    """Whole shapes of inputs, by name."""
    sustain_s: Annotated[float, Field(ge=MIN_SUSTAIN_S, le=MAX_SUSTAIN_S)] | None = None
    """Instead of runs and loads: infer without a break for this time in one launch, rest, then check whether the device is as quick
    again."""
    compute_type: Literal["f32"] | None = None
    """Makes runtimes that may choose a less precise type compute in float32; None: they choose."""
    own_dims: Annotated[tuple[Annotated[int, Field(ge=0, lt=64)], ...], Field(max_length=64)] | None = None
    """The entries of `dims` that the model must have, by their positions in the sorted order of names: these were given for this model, the
    others for several models. None: it need not have any."""

    over_s: Annotated[float, Field(ge=MIN_OVER_S, le=MAX_OVER_S)] | None = None
    """The launches are spread over this time, with gaps between them (with a precision, the first six are); None: without gaps."""

    def required_dims(self) -> tuple[str, ...]:
        """The entries of `dims` that the model must have."""
        names = sorted(self.dims)
        return tuple(names[place] for place in self.own_dims or () if place < len(names))


class Timeouts(Message):
    """Wall limits; the worker enforces its own, the scheduler all of them."""

    queue_s: Seconds = 43_200.0
    fetch_s: Seconds = 300.0
    load_s: Seconds = 60.0
    run_s: Seconds = 300.0


class Task(Message):
    """One model on one unit on one device. The scheduler signs its bytes; the worker runs nothing else."""

    campaign: Id
    task: Id
    scheduler: PeerName
    model: Model
    unit: Line
    requirement: Requirement
    measure: Measure
    timeouts: Timeouts
    memory: Count = 4 * 1024**3
    """Memory that the run may use, in bytes."""
    note: Detail = ""
    replica: Annotated[int, Field(ge=1, le=16)] | None = None
    """Which of several replicas it is, counted from 1: the same run on different devices of a class; None: there is only one."""
    model_url: UrlText | None = None
    """Where the model can also be fetched. A hint: whatever the source, the hash decides whether it is the right file."""
    beside: Annotated[tuple[Model, ...], Field(min_length=1, max_length=MAX_TOGETHER - 1)] | None = None
    """Models with which this one takes turns in one process; it is compared with the first of them. `runs`, `loads` and `precision` of
    `measure` then do not count: launches are made until the comparison is decided. None: the model is measured alone."""
    beside_urls: Annotated[dict[Sha256, UrlText], Field(max_length=MAX_TOGETHER - 1)] | None = None
    """Where those models can also be fetched, by hash; like `model_url`."""
    sitting: Sitting | None = None
    """Which of several sittings it is. None: it is measured once."""
    beside_units: Annotated[tuple[Line, ...], Field(min_length=1, max_length=MAX_TOGETHER - 1)] | None = None
    """The unit of each model in `beside`; each model, this one too, then has its own process. None: all run on `unit`, in one process."""
    examples: Model | None = None
    """A file of examples (`protocol.formats.examples`) that the model answers after it was timed; the answers are in the record. None:
    none."""

    def models(self) -> tuple[Model, ...]:
        """All models that the task needs, its own first."""
        return (self.model, *(self.beside or ()))

    def files(self) -> tuple[Model, ...]:
        """All files that a device needs for the task: its models, then its examples."""
        return (*self.models(), *(() if self.examples is None else (self.examples,)))

    def needs(self, sha256: str) -> bool:
        """Whether the task needs the file with this hash."""
        return any(file.sha256 == sha256 for file in self.files())

    def url_of(self, model: Model) -> str | None:
        """The URL from which one of its models can also be fetched."""
        return self.model_url if model == self.model else (self.beside_urls or {}).get(model.sha256)

    def units(self) -> tuple[str, ...]:
        """The unit of each of `models`."""
        return (self.unit, *(self.beside_units or (self.unit,) * len(self.beside or ())))

    @model_validator(mode="after")
    def _check_units(self) -> Task:
        if self.beside_units is not None and len(self.beside_units) != len(self.beside or ()):
            raise ValueError("beside_units must have as many units as beside has models")
        if self.examples is not None and self.beside is not None:
            raise ValueError("a model that takes turns with others cannot answer examples")
        return self


def task_body(task: Task) -> bytes:
    """The canonical bytes of a task, which its scheduler signs and its result contains as a hash."""
    return pack(task.to_wire())


def task_message(body: bytes) -> bytes:
    return _CONTEXT + body


def read_task(body: bytes) -> Task:
    """The task in `body`, not yet verified. Raises `RemoteProtocolError`."""
    return read_value(Task, body, max_bytes=MAX_TASK)


class TaskReader:
    """Reads many tasks of one home. Most tasks of a campaign differ only in their ids, so their common part is checked once."""

    def __init__(self) -> None:
        self._forms: dict[tuple[bytes, bytes], Task] = {}

    def read(self, name: str, body: bytes) -> Task:
        """Like `read_task`, for the task with the id `name`."""
        return with_id(*self.form(name, body))

    def form(self, name: str, body: bytes) -> tuple[Task, str]:
        """One task that stands for all that differ only in their ids, and the id of this one."""
        head, found, tail = body.partition(name.encode())
        if found and (form := self._forms.get((head, tail))):
            return form, name
        task = read_task(body)
        if task.task == name and name.encode() not in tail:  # the id is in the bytes only once
            self._forms[head, tail] = task
        return task, task.task


def with_id(form: Task, name: str) -> Task:
    """The task with the id `name` that otherwise equals `form`."""
    if form.task == name:
        return form
    return Task.model_construct(form.model_fields_set, **{**form.__dict__, "task": name})


class TaskBodies(MutableMapping[str, bytes]):
    """The canonical bytes of very many tasks, by id. Tasks that differ only in their ids share memory."""

    def __init__(self, bodies: Mapping[str, bytes] = MappingProxyType({})) -> None:
        self._parts: dict[str, tuple[bytes, ...]] = {}
        """The bytes before and after its id; for a body without its id, the whole body."""
        self._shared: dict[tuple[bytes, ...], tuple[bytes, ...]] = {}
        self.update(bodies)

    def __getitem__(self, name: str) -> bytes:
        return name.encode().join(self._parts[name])

    def __setitem__(self, name: str, body: bytes) -> None:
        parts = tuple(body.split(name.encode(), 1))
        self._parts[name] = self._shared.setdefault(parts, parts)

    def __delitem__(self, name: str) -> None:
        del self._parts[name]
        if not self._parts:
            self._shared.clear()

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, other: TaskBodies) -> None:
        """Add all bodies of `other`."""
        self._parts |= other._parts
