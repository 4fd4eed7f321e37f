"""Launches on the units of this device, with one zygote for each driver."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any, Self

from drivers.contract.base import (
    BesideReport,
    Event,
    Limits,
    ModelDescription,
    RoundsReport,
    WorkOrder,
)
from drivers.contract.registry import SIMULATED
from drivers.launch.launch import SAMPLED_UNITS, AskReveal, Launch, Zygote
from drivers.launch.samples import sample_models
from drivers.measure.idle_wait import IdleWait
from drivers.measure.metering import HostMeters
from drivers.measure.reader_process import interval_s
from drivers.measure.telemetry import Sampler
from node.device.gpu_units import ChosenGpu
from node.device.probe import Profile
from node.settings.settings import DriverSecrets
from protocol.errors import LocalProtocolError
from protocol.formats.gpu_units import without_number
from results.row.rounds import LaunchRounds, enough


def enough_rounds(launches: Sequence[RoundsReport]) -> bool:
    """Whether these launches of models that took turns decide all comparisons, or the maximum number of launches is reached."""
    return enough([LaunchRounds(each.wall_ns, each.cpu_ns) for each in launches])


class Launchers:
    """Starts a driver's zygote with its first launch, or in advance (`start`). A driver has a separate zygote for each chosen GPU, whose
    launches see no other GPU. Leaving the block ends all zygotes."""

    def __init__(
        self,
        profile: Profile,
        secrets: DriverSecrets,
        max_wait_s: float = 0,
        meter_file: Path | None = None,
        make: Callable[..., Zygote] = Zygote,
        **zygote: Any,
    ) -> None:
        """`max_wait_s`: the longest that a launch waits for an idle host; 0: no wait. `zygote`: options of `make`."""
        self._profile = profile
        self._secrets = secrets
        self._idle_wait = IdleWait(max_wait_s)
        self._make, self._options = make, zygote
        self._meters = HostMeters(meter_file)
        self._zygotes: dict[tuple[str, int | None], Zygote] = {}
        """(driver, GPU number) → zygote; GPU None: no GPU was chosen."""

    def start(self, drivers: Iterable[str]) -> None:
        """Start the zygotes of these drivers. Raises `DriverError`."""
        for driver in drivers:
            self._zygote(driver, None)

    def _zygote(self, driver: str, gpu: ChosenGpu | None) -> Zygote:
        """Raises `DriverError`."""
        key = (driver, None if gpu is None else gpu.number)
        if key not in self._zygotes:
            private = self._secrets.get(driver)
            if gpu is None:
                made = self._make(driver, private=private, **self._options).start()
            else:  # nothing is preloaded for a GPU
                made = self._make(driver, private={**(private or {}), **gpu.environment}, **self._options)
            self._zygotes[key] = made
        return self._zygotes[key]

    def zygote_of(self, unit: str) -> Zygote:
        """Raises `DriverError`."""
        return self._zygote(self._driver_of(unit), self._profile.gpu_choice.of(unit))

    def launch(self, order: WorkOrder, limits: Limits, reveal: AskReveal | None = None) -> NamedLaunch:
        """`reveal`: the run is witnessed; see `Launch`."""
        own, *beside = map(self.zygote_of, (order.unit, *order.beside_units))
        simulated = own.driver in SIMULATED
        plain = plain_order(order)
        launch = Launch(
            plain,
            limits,
            own,
            None if simulated else self._idle_wait,
            self._sampler(order),
            reveal=reveal,
            enough=enough_rounds,
            metering=self._meters.of_run(gpu=plain.unit in SAMPLED_UNITS, run_s=order.lasts_s),
            beside=beside,
        )
        return NamedLaunch(launch, order)

    def _sampler(self, order: WorkOrder) -> Sampler | None:
        """The sampler of the GPU chosen for the order's unit; None: the launch finds a sampler itself."""
        gpu = self._profile.gpu_choice.of(order.unit)
        every_s = interval_s(order.lasts_s)
        return None if gpu is None else Sampler(gpu.nvml, every_s=every_s)

    def _driver_of(self, unit: str) -> str:
        driver = self._profile.driver_of(unit)
        if driver is None:
            raise LocalProtocolError(f"a run on {unit} was admitted, but {unit} does not work here")
        return driver

    def launch_at_once(self, order: WorkOrder, limits: Limits) -> NamedLaunch:
        """A launch that does not wait for an idle host, and has no energy meters."""
        launch = Launch(plain_order(order), limits, self.zygote_of(order.unit), sampler=self._sampler(order))
        return NamedLaunch(launch, order)

    def samples(self, driver: str) -> dict[str, bytes]:
        """The sample models of a driver, from small to large. Raises `DriverError`."""
        return sample_models(self._zygote(driver, None))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        while self._zygotes:
            self._zygotes.popitem()[1].close()


def plain_order(order: WorkOrder) -> WorkOrder:
    """The order without GPU numbers: a driver sees only one GPU."""
    beside = tuple(map(without_number, order.beside_units))
    return replace(order, unit=without_number(order.unit), beside_units=beside)


class NamedLaunch:
    """A launch whose events name the units as the task does."""

    def __init__(self, launch: Launch, order: WorkOrder) -> None:
        self._launch = launch
        self._unit, self._beside = order.unit, order.beside_units
        self.kill = launch.kill

    def events(self) -> Generator[Event]:
        beside = cycle(self._beside or (self._unit,))
        for event in self._launch.events():
            if isinstance(event, ModelDescription):
                yield renamed(event, self._unit)
            elif isinstance(event, BesideReport):
                yield replace(event, described=renamed(event.described, next(beside)))
            else:
                yield event


def renamed(described: ModelDescription, unit: str) -> ModelDescription:
    """`described` with the numbered name `unit`, if the model ran on that unit. A model that ran elsewhere keeps its unit's name."""
    return replace(described, unit=unit) if described.unit == without_number(unit) else described
