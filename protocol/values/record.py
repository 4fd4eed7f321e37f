"""The record of a run: everything a worker observed, raw, under its signature. Anyone can compute medians from it later.

Samples are sent as zlib-compressed zigzag varints of differences: a tenth of the plain size, and bounded when unpacked.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from protocol.errors import RemoteProtocolError
from protocol.formats.chain import SUMS_BYTES, launch_digest
from protocol.values.answers import AnswerSet
from protocol.values.energy import MAX_METERS, MeterSample
from protocol.values.lease import Fence
from protocol.values.operators import OperatorUse
from protocol.values.rounds import MAX_TOGETHER, RoundsSample
from protocol.values.sustained import SustainedSample
from protocol.wire.base import Count, Detail, Id, Key32, Line, Message, PeerName, Seconds, Sha256, Signature
from protocol.wire.codec import inflate, pack, read_value
from protocol.words import Reason, RunOutcome

MAX_RECORD: Final = 16 * 1024 * 1024
MAX_SAMPLES: Final = 1_000_000

Real = Annotated[float, Field(ge=-1e18, le=1e18)]
Share = Annotated[float, Field(ge=0, le=1)]
FigureName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
_CONTEXT: Final = b"sark record 1\n"
MAX_VARINT: Final = 10
"""Bytes of a 64-bit number."""
_CONTINUED: Final = bytes(range(0x80, 0x100))
"""Bytes that do not end a number."""
_DELTAS: Final = tuple(-((byte + 1) >> 1) if byte & 1 else byte >> 1 for byte in range(0x80))
"""The decoded values of one-byte numbers."""


def pack_samples(samples: Sequence[int]) -> bytes:
    """Nanoseconds, in order, as compressed differences."""
    out = bytearray()
    last = 0
    for sample in samples:
        delta, last = sample - last, sample
        value = (delta << 1) if delta >= 0 else ((-delta << 1) - 1)
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
    return zlib.compress(bytes(out), 6)


def unpack_samples(data: bytes, most: int = MAX_SAMPLES) -> tuple[int, ...]:
    """The inverse of `pack_samples`. Raises `RemoteProtocolError` for anything else, or for more than `most` samples, which are counted
    before any is read.
    """
    plain = inflate(data, max(1, MAX_VARINT * most), "samples")
    if len(plain.translate(None, _CONTINUED)) > most or plain[-1:] > b"\x7f":
        raise RemoteProtocolError("bad samples: too many or cut off")
    samples = tuple(accumulate([_DELTAS[byte] for byte in plain]) if plain.isascii() else _walk(plain))
    if min(samples, default=0) < 0:
        raise RemoteProtocolError("bad samples: a negative time")
    return samples


def _walk(plain: bytes) -> list[int]:
    samples: list[int] = []
    last = value = shift = 0
    for byte in plain:
        if byte >= 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise RemoteProtocolError("bad samples: a number above 64 bits")
            continue
        value |= byte << shift
        last += -((value + 1) >> 1) if value & 1 else value >> 1
        samples.append(last)
        value = shift = 0
    return samples


class LoadSample(Message):
    """One load: session creation only."""

    ns: Count
    kind: Literal["cold", "fresh", "warm"] = "fresh"
    """In a fresh process, with the file's pages dropped from memory before; in a fresh process; once more in the same process."""
    baseline: Count | None = None
    """Resident bytes before the load."""
    peak: Count | None = None
    """Highest number of resident bytes during the load."""


class HostLoad(Message):
    """The host over the timed window of one launch. None: its system does not report it."""

    others: Share | None = None
    """Share of all processors' time that other processes used; if the window is too short, share of the processors at moments around it."""
    steal: Share | None = None
    """Share of all processors' time that the hypervisor took."""
    clock_mhz: Real | None = None
    throttles: Count | None = None
    """How often heat slowed the processors."""
    temperature_c: Real | None = None
    on_battery: bool | None = None


BLOCK_FIELDS: Final = ("samples", "wall_ns", "cpu_ns", "stall_ns", "switches")
"""The numbers of each block, in this order; the last two are stored plus one, and are 0 if the system does not report them."""


class OutputSketch(Message):
    """One output in few numbers, so that devices which round differently can be compared."""

    dtype: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,32}$")]
    count: Count
    """Number of values."""
    norm: Annotated[float, Field(ge=0, le=1e18)]
    """The Euclidean norm."""
    sums: Annotated[bytes, Field(min_length=SUMS_BYTES, max_length=SUMS_BYTES)]
    """16 signed sums of the values as shares of the norm: 32-bit floats, big-endian."""


class LaunchOutput(Message):
    """The outputs of the last inference of a launch."""

    sha256: Sha256
    sketches: Annotated[tuple[OutputSketch, ...], Field(max_length=4)] = ()
    """Sketches of the first numeric outputs, by name."""

    def digest(self) -> bytes:
        """The digest with which the chain of a witnessed run continues."""
        return launch_digest(
            self.sha256, ((one.dtype, one.count, one.norm, one.sums) for one in self.sketches)
        )


class Timing(Message):
    """The timed inferences of one launch; warm-up is separate."""

    samples: bytes
    """Packed nanoseconds, in order."""
    warmup: bytes
    began_s: Seconds = 0.0
    """Seconds since the beginning of the first launch's window."""
    per_sample: Annotated[int, Field(ge=1, le=10_000_000)] = 1
    """Inferences behind each sample, which is their mean."""
    blocks: bytes | None = None
    """Packed numbers: `BLOCK_FIELDS` for each block of the window."""
    host: HostLoad | None = None
    cpu_s: Seconds
    wall_s: Seconds
    baseline: Count | None = None
    """Resident bytes of the child process before its load."""
    peak: Count | None = None
    timer_ns: Count = 0
    switches: Count | None = None
    """Involuntary context switches in the timed window."""
    output: LaunchOutput | None = None
    """For a witnessed run, in each launch; otherwise in the first one, if its driver reports it."""


class Accelerator(Message):
    """The accelerator over the timed windows of all launches. None: it does not report it."""

    source: Line
    """What read it, such as `nvml`."""
    device: Line
    samples: Count
    utilisation: Share | None = None
    memory: Count | None = None
    """Most bytes that the run held."""
    power_w: Real | None = None
    idle_w: Real | None = None
    energy_j: Real | None = None
    clock_mhz: Real | None = None
    temperature_c: Real | None = None
    throttled: Annotated[tuple[Line, ...], Field(max_length=16)] = ()
    notes: Annotated[tuple[Detail, ...], Field(max_length=16)] = ()


FEW_DIGITS: Final = ("bf16", "f16")
"""Types in which runtimes may compute float32 models."""


class RunFacts(Message):
    """What really ran."""

    unit: Line
    driver: Line
    runtime: Line
    providers: Annotated[tuple[Line, ...], Field(max_length=16)] = ()
    threads: Annotated[int, Field(ge=0, le=8192)] = 0
    shapes: Annotated[dict[str, tuple[int, ...]], Field(max_length=256)] = {}
    dtypes: Annotated[dict[str, str], Field(max_length=256)] = {}
    batch: Annotated[int, Field(ge=1, le=2**20)] | None = None
    """Size of the batch, if the task gives it."""
    seed: Count = 0
    notes: Annotated[tuple[Detail, ...], Field(max_length=64)] = ()
    output_sha256: Sha256 | None = None
    agrees: bool | None = None
    """Whether the outputs agree with the reference; None: not checked."""
    max_error: float | None = None
    tolerance: float | None = None
    compared: Detail = ""
    """The output that differs most from the reference, by how much, and the tolerance."""
    operators: Annotated[tuple[OperatorUse, ...], Field(max_length=200)] | None = None
    """Which provider ran them, longest first; None: its runtime does not report it."""
    compute_type: Line | None = None
    """Type of the floats in which it computed, such as bf16; None: its runtime does not report it, or it is the model's own type."""

    @property
    def evidence(self) -> bool | None:
        """What the outputs say about the device: whether they agree with the reference. None: nothing, since they were not checked, or they
        differ and the runtime chose to compute with 16 bits."""
        return None if not self.agrees and self.compute_type in FEW_DIGITS else self.agrees


class DeviceFacts(Message):
    """The device as its advert described it when the run began."""

    device: Line
    name: Line
    soc: Line = ""
    ram: Count | None = None
    os: Line = ""
    arch: Line = ""
    cores: Count | None = None
    version: Line = ""
    fingerprint: Line = ""
    """A sha256 over its hardware, system, drivers and runtimes: identical for devices of the same make."""
    simulated: Literal[True] | None = None
    """It simulates this device. None: it is a real device."""


class StageTime(Message):
    """How long one stage took on the worker's monotonic clock."""

    stage: Line
    seconds: Seconds


class Record(Message):
    """The whole observation of one attempt."""

    v: Literal[1] = 1
    campaign: Id
    task: Id
    attempt: Annotated[int, Field(ge=1, le=1000)]
    fence: Fence
    worker: PeerName
    task_sha256: Sha256
    """Over the bytes of the signed task."""
    model_sha256: Sha256
    outcome: Annotated[RunOutcome, Field(strict=False)]
    reason: Annotated[Reason, Field(strict=False)] | None = None
    permanent: bool = False
    """Another device would fail in the same way."""
    detail: Detail = ""
    device: DeviceFacts
    ran: RunFacts | None = None
    loads: Annotated[tuple[LoadSample, ...], Field(max_length=512)] = ()
    timings: Annotated[tuple[Timing, ...], Field(max_length=256)] = ()
    """One for each launch that timed inferences, in order."""
    accelerator: Accelerator | None = None
    figures: Annotated[dict[FigureName, Real], Field(max_length=256)] = {}
    """What was measured in addition to latency, by name, which includes the unit."""
    series: Annotated[dict[FigureName, bytes], Field(max_length=16)] = {}
    """Packed nanoseconds by name: raw times of anything but inferences."""
    stages: Annotated[tuple[StageTime, ...], Field(max_length=32)] = ()
    opening: Key32 | None = None
    """Determines the first launch's inputs; None: the run was not witnessed."""
    reveal: Key32 | None = None
    """Determines the later launches' inputs, together with the outputs before them."""
    rounds: Annotated[tuple[RoundsSample, ...], Field(max_length=256)] | None = None
    """One for each launch in which the task's models took turns, in order; None: the task has one model."""
    ran_beside: Annotated[tuple[RunFacts, ...], Field(max_length=MAX_TOGETHER - 1)] | None = None
    """The facts of the models that ran beside, in the task's order."""
    sustained: SustainedSample | None = None
    """For a sustained run. None: the task requests none."""
    meters: Annotated[tuple[MeterSample, ...], Field(max_length=MAX_METERS)] | None = None
    """Energy meters; None: there were none to read. Records of older versions have only the accelerator's energy, above."""
    answers: AnswerSet | None = None
    """The answers to the task's examples. None: it has none, or the run ended before they were answered."""


class SignedRecord(Message):
    """A record's canonical bytes under its worker's key."""

    body: bytes
    signature: Signature


def record_body(record: Record) -> bytes:
    return pack(record.to_wire())


def record_message(body: bytes) -> bytes:
    return _CONTEXT + body


def read_record(body: bytes) -> Record:
    """The record in `body`, not yet verified. Raises `RemoteProtocolError`."""
    return read_value(Record, body, max_bytes=MAX_RECORD, max_elements=8192)
