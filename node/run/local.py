"""Measures on this device without a network, for `bench` and Python, with the same runner, device lock and signed record as a worker.

    with LocalDevice(home) as device:
        task, signed = device.measure(Path("m.onnx"), "CPU (ONNX)", Measure(runs=100))

Blocking. A running worker on the same host is not disturbed, because the device lock allows one measurement at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Self

import trio

from drivers.contract.base import DriverError
from drivers.launch.launch import ProbedUnits, probe_units
from node.device.calibration_file import calibration_file, read_calibration
from node.device.gpu_units import units_on_gpus
from node.device.known_units import known_units, state_of
from node.device.lock import DeviceLock
from node.device.probe import Profile, device_facts, lock_name, memory_cap, probe_device
from node.run.launchers import Launchers
from node.run.record_builder import RecordJob
from node.run.runner import Report, RunBench, StopRun, run
from node.settings.gpus import ONE
from node.settings.settings import API, DriverSecrets, WorkerSettings
from protocol.errors import CampaignError, ResourceError
from protocol.values.advert import UnitOffer
from protocol.values.lease import Fence
from protocol.values.record import Record, SignedRecord, record_body, record_message
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts, task_body
from swarm.base.home import Home
from swarm.blobs.bundles import contents
from swarm.net.identity import load_or_create

MEMORY_SHARE: Final = 0.8
"""Share of this device's memory that a run may take, so that the owner can keep working."""
MAX_WAIT_S: Final = WorkerSettings().max_wait_s
"""A worker's default."""


@dataclass(frozen=True, slots=True)
class Local:
    """A local measurement: the task as a scheduler would have signed it, and the record signed with this device's key."""

    task: Task
    signed: SignedRecord


class LocalDevice:
    """This device, probed once. Keeps one zygote for each driver used, so that several models share one start."""

    def __init__(
        self,
        home: Home,
        *,
        simulate: bool = False,
        private: DriverSecrets | None = None,
        max_wait_s: float = MAX_WAIT_S,
        lock_folder: Path | None = None,
        meter_file: Path | None = None,
        gpus: str = ONE,
    ) -> None:
        """`private`: the owner's variables for single drivers. `max_wait_s`: the longest that a measurement waits for other work on this
        device to end; 0: no wait. `lock_folder`: the folder of the device lock, if not the host's usual one. `gpus`: the GPUs that units
        use, as in a worker's settings.
        """
        self._home = home
        self._private = private or DriverSecrets()
        self._identity = load_or_create(home.key("worker"))
        trying = units_on_gpus(gpus, partial(probe_units, simulate), self._private)
        look: Callable[[], ProbedUnits] = trying
        if not simulate and not self._private:  # an owner's server is always probed: it comes and goes
            look = partial(known_units, home.cache / "units.json", state_of(trying.gpus), trying)
        self.profile: Profile = probe_device(home.folder("worker"), look, on=trying.gpus)
        """The device's properties, and the units that work here."""
        self._lock = DeviceLock(lock_name(), lock_folder)
        self._launchers = Launchers(self.profile, self._private, max_wait_s, meter_file, simulate=simulate)
        self._campaign, self._count = f"bench-{secrets.token_hex(4)}", 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._launchers.__exit__()

    @property
    def units(self) -> tuple[str, ...]:
        return tuple(offer.unit for offer in self.profile.units)

    @property
    def offers(self) -> tuple[UnitOffer, ...]:
        return self.profile.units

    def measure(
        self,
        path: Path,
        unit: str,
        measure: Measure,
        timeouts: Timeouts | None = None,
        report: Report = lambda phase, done, total, median_ms: None,
        beside: Sequence[Path] = (),
        beside_units: Sequence[str] = (),
    ) -> Local:
        """Measure the model in the file at `path`. A failed model gives a record that says so, not an error. `beside`: files of other
        models, with which the model takes turns in one process until it is compared with the first of them. `beside_units`: the unit of
        each of those models, which then runs in a process of its own.

        Raises `CampaignError` for a missing file, `ResourceError` for a unit that does not work here.
        """
        for each in (unit, *beside_units):
            self._require(each)
        with contextlib.suppress(DriverError):  # the launch meets the error again, and puts it in the record
            # imports their runtimes while the models are read
            self._launchers.start([self.profile.drivers[each] for each in (unit, *beside_units)])
        task = self._task(path, unit, measure, timeouts or Timeouts(), beside, beside_units)
        body = task_body(task)
        job = RecordJob(
            lease="bench",
            fence=Fence(incarnation=0, number=1),
            attempt=1,
            task=task,
            task_sha256=hashlib.sha256(body).hexdigest(),
        )
        files = dict(zip(task.models(), (path, *beside), strict=True))
        record = _interruptible(partial(run, job, self._bench(files), StopRun(), report))
        made = record_body(record)
        return Local(task, SignedRecord(body=made, signature=self._identity.sign(record_message(made))))

    def _require(self, unit: str) -> None:
        """Raises `ResourceError` if the unit does not work."""
        if self.profile.driver_of(unit) is None:
            works = ", ".join(self.units) or "none"
            notes = "; ".join(self.profile.notes)
            if unit.startswith("API ") and API not in self._private:
                works += "\nname the server: SARK_API=http://127.0.0.1:8000/v1"
            raise ResourceError(
                f"{unit} does not work on this device" + (f" ({notes})" if notes else ""),
                hint=f"units that do: {works}",
            )

    def _bench(self, files: Mapping[Model, Path]) -> RunBench:
        return RunBench(
            worker=self._identity.peer_id,
            facts=lambda: device_facts(self.profile, version("sark-node")),
            model=lambda job, model, progress: contextlib.nullcontext(files[model]),
            lock=self._lock,
            launch=self._launchers.launch,
            memory_cap=memory_cap(self.profile, MEMORY_SHARE),
            **self._learned(),
        )

    def _learned(self) -> dict[str, Any]:
        """The options of a run that come from this device's calibration, if there is one."""
        fingerprint = self.profile.fingerprint
        calibration = read_calibration(calibration_file(fingerprint), fingerprint).calibration
        if calibration is None:
            return {}
        return {"warmup_floor": calibration.floor, "first_look": calibration.first_look}

    def _task(
        self,
        path: Path,
        unit: str,
        measure: Measure,
        timeouts: Timeouts,
        beside: Sequence[Path],
        beside_units: Sequence[str],
    ) -> Task:
        model, *others = map(_model, (path, *beside))
        self._count += 1
        return Task(
            campaign=self._campaign,
            task=f"{self._campaign}/{self._count}",
            scheduler=self._identity.peer_id,
            model=model,
            unit=unit,
            requirement=Requirement(clauses=()),
            measure=measure,
            timeouts=timeouts,
            memory=memory_cap(self.profile, MEMORY_SHARE),
            beside=tuple(others) or None,
            beside_units=tuple(beside_units) or None,
        )


def _interruptible(measured: Callable[[], Awaitable[Record]]) -> Record:
    """Run a measurement so that Ctrl-C ends it at once. Trio interrupts its main task, and a task that waits for a thread cannot be
    interrupted, so the measurement runs in another task. Raises `KeyboardInterrupt` once the processes are dead.
    """
    records: list[Record] = []

    async def measure() -> None:
        records.append(await measured())

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(measure)

    try:
        trio.run(main)
    except BaseExceptionGroup as group:
        alone = group.exceptions[0] if len(group.exceptions) == 1 else group
        raise alone from None
    return records[0]


def _model(path: Path) -> Model:
    """The model with the hash of its content. Raises `CampaignError`."""
    try:
        size, sha256 = _hashed(path)
    except ValueError as exc:
        raise CampaignError(f"model {path}: {exc}", hint="give a model's file, or its folder") from exc
    except OSError as exc:
        raise CampaignError(
            f"model {path}: {exc.strerror or exc}", hint="give the path of a model's file"
        ) from exc
    return Model(name=path.name, sha256=sha256, size=size)


def _hashed(path: Path) -> tuple[int, str]:
    """Size and sha256 of a model's bytes; a folder counts as the bundle that a scheduler would send."""
    digest = hashlib.sha256()
    size = 0
    for piece in contents(path):
        digest.update(piece)
        size += len(piece)
    return size, digest.hexdigest()
