"""Launches on the units of this device, with one zygote for each driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from drivers.contract.base import Limits, RoundsReport, WorkOrder
from drivers.contract.registry import SIMULATED
from drivers.launch.launch import SAMPLED_UNITS, AskReveal, Launch, Zygote
from drivers.launch.samples import sample_models
from drivers.measure.idle_wait import IdleWait
from drivers.measure.metering import HostMeters
from node.device.probe import Profile
from node.settings.settings import DriverSecrets
from protocol.errors import LocalProtocolError
from results.row.rounds import LaunchRounds, enough


def enough_rounds(launches: Sequence[RoundsReport]) -> bool:
    """Whether these launches of models that took turns decide all comparisons, or no more are to be made."""
    return enough([LaunchRounds(each.wall_ns, each.cpu_ns) for each in launches])


class Launchers:
    """Starts a driver's zygote with its first launch, or in advance (`start`). Ends all of them on leaving the block."""

    def __init__(
        self,
        profile: Profile,
        secrets: DriverSecrets,
        max_wait_s: float = 0,
        meter_file: Path | None = None,
        **zygote: Any,
    ) -> None:
        """`max_wait_s`: the longest that a launch waits for an idle host; 0: it does not wait. `zygote`: for `Zygote`."""
        self._profile = profile
        self._secrets = secrets
        self._idle_wait = IdleWait(max_wait_s)
        self._options = zygote
        self._meters = HostMeters(meter_file)
        self._zygotes: dict[str, Zygote] = {}

    def start(self, drivers: Iterable[str]) -> None:
        """Raises `DriverError`."""
        for driver in drivers:
            if driver not in self._zygotes:
                zygote = Zygote(driver, private=self._secrets.get(driver), **self._options)
                self._zygotes[driver] = zygote.start()

    def launch(self, order: WorkOrder, limits: Limits, reveal: AskReveal | None = None) -> Launch:
        """`reveal`: the run is witnessed; see `Launch`."""
        driver, *beside = map(self._driver_of, (order.unit, *order.beside_units))
        self.start([driver, *beside])
        idle_wait = None if driver in SIMULATED else self._idle_wait
        return Launch(
            order,
            limits,
            self._zygotes[driver],
            idle_wait,
            reveal=reveal,
            enough=enough_rounds,
            metering=self._meters.of_run(gpu=order.unit.startswith(SAMPLED_UNITS), run_s=order.sustain_s),
            beside=[self._zygotes[each] for each in beside],
        )

    def _driver_of(self, unit: str) -> str:
        driver = self._profile.driver_of(unit)
        if driver is None:
            raise LocalProtocolError(f"a run on {unit} was let in, which does not work here")
        return driver

    def launch_at_once(self, order: WorkOrder, limits: Limits) -> Launch:
        """Without waiting for an idle host, and without meters of energy."""
        self.start([driver := self._profile.driver_of(order.unit) or ""])
        return Launch(order, limits, self._zygotes[driver])

    def samples(self, driver: str) -> dict[str, bytes]:
        """Sample models that a driver makes, from small to large. Raises `DriverError`."""
        self.start([driver])
        return sample_models(self._zygotes[driver])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        while self._zygotes:
            self._zygotes.popitem()[1].close()
