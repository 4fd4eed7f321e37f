"""Raw results: all samples with the signed records, so that anyone can recompute the numbers. Files are written whole or not at all."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from protocol.errors import RemoteProtocolError, ResourceError
from protocol.values.record import RunFacts, SignedRecord, read_record
from results.row.record import observe
from results.row.rounds import launch_log_ratio
from results.row.row import Row
from results.row.witness import WitnessAccount
from results.scoring.account import EvaluationAccount
from swarm.base.durable import replacing
from swarm.base.text import safe_text

FORMAT: Final = "sark results 1"


Number = Annotated[int, Field(ge=0)]
"""A count. A count below 0 would let launches share samples, and so a small file could fill the memory."""


class RawResult(BaseModel):
    """One task with everything that was observed, and the bytes and signature that verify it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    row: Row
    loads_ns: tuple[int, ...] = ()
    load_kinds: tuple[str, ...] = ()
    """The kind of each load: cold, fresh or warm."""
    warmup_ns: tuple[int, ...] = ()
    warmups: tuple[Number, ...] = ()
    """The number of samples in `warmup_ns` of each launch."""
    inference_ns: tuple[int, ...] = ()
    """Timed samples of all launches, in order."""
    samples: tuple[Number, ...] = ()
    """The number of samples in `inference_ns` of each launch."""
    per_sample: tuple[Number, ...] = ()
    """Inferences behind each sample of a launch, which is their mean."""
    series_ns: dict[str, tuple[int, ...]] = {}
    """Other times by name."""
    ran: RunFacts | None = None
    """What actually ran, with the resolved shapes."""
    task: str = ""
    """The task's canonical bytes, in base64."""
    record: str = ""
    """The record's canonical bytes as the worker signed them, in base64."""
    signature: str = ""
    """Ed25519, by the key of the row's WorkerId, in hexadecimal."""
    account: WitnessAccount | None = None
    """What the scheduler witnessed of a stranger's run: its own account, which no worker signed."""
    evaluation: EvaluationAccount | None = Field(default=None, exclude_if=lambda known: known is None)
    """How its answers are scored, with the references: also the scheduler's own account."""

    @property
    def launches(self) -> tuple[tuple[int, ...], ...]:
        """The timed samples of each launch, in nanoseconds."""
        return _split(self.inference_ns, self.samples)

    @property
    def warmup_launches(self) -> tuple[tuple[int, ...], ...]:
        """The warm-up samples of each launch, in nanoseconds."""
        return _split(self.warmup_ns, self.warmups)

    def entry(self) -> ResultEntry:
        return ResultEntry(self.row, self.launches, record=self.record if self.row.against else "")


def _split(times: tuple[int, ...], counts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    ends = list(accumulate(counts, initial=0))
    return tuple(times[start:end] for start, end in pairwise(ends))


def raw_result(
    row: Row,
    task_body: bytes,
    signed: SignedRecord | None,
    account: WitnessAccount | None = None,
    evaluation: EvaluationAccount | None = None,
) -> RawResult:
    """`row` with its raw samples. For an unreadable record, only its bytes are included."""
    base = RawResult(
        row=row, task=base64.b64encode(task_body).decode(), account=account, evaluation=evaluation
    )
    if signed is None:
        return base
    update: dict[str, object] = {
        "record": base64.b64encode(signed.body).decode(),
        "signature": signed.signature.hex(),
    }
    try:
        record = read_record(signed.body)
        observed = observe(record)
    except RemoteProtocolError:
        return base.model_copy(update=update)
    return base.model_copy(
        update=update
        | {
            "loads_ns": tuple(load.ns for load in record.loads),
            "load_kinds": tuple(load.kind for load in record.loads),
            "warmup_ns": observed.warmup,
            "warmups": tuple(len(launch.warmup) for launch in observed.launches),
            "inference_ns": observed.runs,
            "samples": tuple(len(launch.samples) for launch in observed.launches),
            "per_sample": tuple(launch.per_sample for launch in observed.launches),
            "series_ns": dict(observed.series),
            "ran": record.ran,
        }
    )


def json_lines(campaign: str, results: Iterable[RawResult]) -> Iterable[str]:
    """One JSON document in pieces, one result per line, so that a large campaign need not be in memory at once."""
    yield f'{{"format": {json.dumps(FORMAT)}, "campaign": {json.dumps(campaign)}, "results": [\n'
    comma = ""
    for result in results:
        yield comma + result.model_dump_json()
        comma = ",\n"
    yield "\n]}\n"


def read_raw(data: bytes) -> tuple[RawResult, ...]:
    """The results in a file of `json_lines`. Raises ValueError for anything else."""
    value = json.loads(data)
    if (
        not isinstance(value, dict)
        or value.get("format") != FORMAT
        or not isinstance(value.get("results"), list)
    ):
        raise ValueError(f"not a file of raw results ({FORMAT})")
    return tuple(RawResult.model_validate_json(json.dumps(item)) for item in value["results"])


@dataclass(frozen=True, slots=True)
class ResultEntry:
    """One row, with its launches' samples if known."""

    row: Row
    launches: tuple[tuple[int, ...], ...] = ()
    peaks: tuple[int, ...] = ()
    """The peak memory of each launch in bytes, if requested."""
    record: str = ""
    """If its model took turns: the record, in base64."""

    def turns(self) -> tuple[tuple[int, ...], ...]:
        """For each launch in which the model took turns: its time divided by that of the model beside it, in billionths."""
        try:
            rounds = observe(read_record(base64.b64decode(self.record))).rounds
        except (RemoteProtocolError, ValueError):
            return ()
        logs = [launch_log_ratio(each.wall_ns[0], each.wall_ns[-1]) for each in rounds]
        return tuple((round(1e9 * math.exp(log)),) for log in logs if log is not None)


@dataclass(frozen=True, slots=True)
class ResultSource:
    """Results under the name by which they were requested."""

    name: str
    campaign: str
    results: tuple[RawResult, ...] = ()
    """Empty for a CSV, which has no raw samples."""
    text: str | None = None
    """The whole file, if the source was one."""
    rows: tuple[Row, ...] = ()
    whole: tuple[RawResult, ...] = ()
    """For the results of one task: all results of its campaign, including replicas it was compared with."""

    def entries(self) -> tuple[ResultEntry, ...]:
        if not self.results:
            return tuple(ResultEntry(row) for row in self.rows)
        return tuple(result.entry() for result in self.results)


# -- files ------------------------------------------------------------------------------------------------------------------------------


def check_folder(path: Path) -> None:
    """Raise `ResourceError` unless the folder of `path` exists: a mistyped name must not create one."""
    folder = path.absolute().parent
    try:
        there = folder.is_dir()
    except OSError:  # no permission
        there = False
    if not there:
        raise ResourceError(
            f"cannot write {safe_text(str(path))}: there is no folder {safe_text(str(folder))}",
            hint="create the folder first, or name another file",
        )


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write `lines` to `path` in UTF-8, all or nothing; line ends stay as they are. Raises `ResourceError`. Blocking."""

    def as_bytes(out: IO[bytes]) -> None:
        text = io.TextIOWrapper(out, encoding="utf-8", newline="")
        text.writelines(lines)
        text.detach()  # flushes, and leaves the file open

    replace_bytes(path, as_bytes)


def replace_bytes(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Replace `path` with a file written by `write`, all or nothing, flushed to disk. Raises `ResourceError`. Blocking."""
    check_folder(path)
    try:
        with replacing(path, mode=0o666) as out:
            write(out)
    except OSError as exc:
        raise ResourceError(
            f"cannot write {safe_text(str(path))}: {exc.strerror or exc}",
            hint="the results are still in the store: free some space or choose another path, then run sark-node results again",
        ) from exc
