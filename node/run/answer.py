"""A model's outputs on this machine's processor, for inputs made from a seed. A submitter compares a stranger's outputs with them."""

from __future__ import annotations

import contextlib
import stat
import tempfile
import threading
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

from drivers.contract.base import DriverError, Limits, OutputReport, WorkOrder
from drivers.launch.launch import Launch, Zygote
from drivers.testing.fake import UNIT as SIMULATED_UNIT
from node.run.record_builder import launch_output
from node.run.runner import limits, work_order
from node.store import bundles
from protocol.errors import RemoteProtocolError, ResourceError
from protocol.formats.frameworks import FORMATS_BY_FRAMEWORK, cpu_unit, driver_of, framework_of
from protocol.values.record import LaunchOutput
from protocol.values.task import Task

DRIVERS: Final = {
    "Simulation": ("fake", SIMULATED_UNIT),
    **{
        framework: (driver_of(framework_of(unit)), unit)
        for framework in FORMATS_BY_FRAMEWORK
        for unit in (cpu_unit(framework),)
    },
}
"""Framework → (driver, its unit on the processor)."""
MOST_S: Final = 20.0
"""Time limit for the load, and for the inferences."""
READABLE: Final = 0o444
"""File mode of the model, because a root node's child process runs as `nobody`. The mode of the folder decides who may enter it."""
MEMORY: Final = 8 * 1024**3


class LocalAnswers:
    """Runs a model in a sandboxed process, one inference for each call. Keeps one zygote for each driver used. Blocking; thread-safe."""

    def __init__(self) -> None:
        self._zygotes: dict[str, Zygote] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            while self._zygotes:
                self._zygotes.popitem()[1].close()

    def __call__(self, model: Path, task: Task, seed: int) -> LaunchOutput:
        """The outputs of the model file for the task's inputs with this seed. Raises `ResourceError` if the model cannot run here."""
        framework = framework_of(task.unit)
        if framework not in DRIVERS:
            raise ResourceError(f"this home does not run models for {task.unit}")
        driver, unit = DRIVERS[framework]
        with tempfile.TemporaryDirectory(prefix="sark-answer-") as scratch:
            try:
                path = _on_disk(model, Path(scratch))
                order = work_order(task, str(path))
                once = replace(
                    order,
                    unit=unit,
                    seed=seed,
                    runs=1,
                    loads=1,
                    warmup=1,
                    precision=None,
                    sustain_s=None,
                    over_s=None,
                    check=False,
                    brief=True,
                    witnessed=True,
                )
                return self._run(driver, once, limits(task, MEMORY))
            except OSError as exc:
                raise ResourceError(f"the model is not here: {exc.strerror or exc}") from exc
            except RemoteProtocolError as exc:
                raise ResourceError(f"the model cannot be unpacked: {exc.what}") from exc
            except DriverError as exc:
                raise ResourceError(f"this home cannot run it: {exc}") from exc

    def _run(self, driver: str, order: WorkOrder, allowed: Limits) -> LaunchOutput:
        allowed = replace(allowed, load_s=min(allowed.load_s, MOST_S), run_s=min(allowed.run_s, MOST_S))
        with self._lock:
            if driver not in self._zygotes:
                self._zygotes[driver] = Zygote(driver, simulate=driver == "fake").start()
            zygote = self._zygotes[driver]
        with contextlib.closing(_outputs(order, allowed, zygote)) as events:
            for report in events:
                return launch_output(report)
        raise ResourceError("this home's driver does not report outputs")


def _outputs(order: WorkOrder, allowed: Limits, zygote: Zygote) -> Generator[OutputReport, None, None]:
    for event in Launch(order, allowed, zygote).events():
        if isinstance(event, OutputReport):
            yield event


def _on_disk(model: Path, scratch: Path) -> Path:
    """The path at which a driver reads the model. A bundle is unpacked."""
    if not bundles.is_bundle(model):
        model.chmod(stat.S_IMODE(model.stat().st_mode) | READABLE)
        return model
    bundles.unpack(model, scratch / "model")
    return scratch / "model"
