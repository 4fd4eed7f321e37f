"""A worker that pretends to be another device, for demonstrations. It offers only the simulated unit, and always says that it is simulated.

The simulated device is given as JSON. The worker's advert and signed records describe it with `simulated` set, so that every reader keeps
them apart from measurements.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from drivers.contract.registry import SIMULATED
from node.device.probe import Profile
from node.settings.settings import DriverSecrets
from protocol.errors import SettingsError
from protocol.values.advert import GpuInfo
from protocol.wire.base import Count, Line, Name

KIND: Final = "SARK_FAKE_KIND"
"""The variable that tells the simulated driver the kind of device whose figures it must give."""


class SimulatedDevice(BaseModel):
    """The description of a simulated device."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Name
    """The name of its kind in scripts."""
    device: Name
    soc: Line
    os: Line
    arch: Line
    cores: Annotated[int, Field(ge=1, le=4096)]
    ram: Count
    gpu: Line = ""
    vram: Count | None = None

    def profile(self, real: Profile) -> Profile:
        """The profile announced in place of this device's own, with only the simulated units."""
        drivers = {unit: driver for unit, driver in real.drivers.items() if driver in SIMULATED}
        return replace(
            real,
            device=self.device,
            soc=self.soc,
            os=self.os,
            arch=self.arch,
            cores=self.cores,
            threads=self.cores,
            ram=self.ram,
            units=tuple(offer for offer in real.units if offer.unit in drivers),
            drivers=drivers,
            gpus=(GpuInfo(name=self.gpu, vram=self.vram),) if self.gpu else (),
            simulated=True,
            monitors=(),
        )

    def private(self) -> DriverSecrets:
        """The variables for its simulated driver."""
        return DriverSecrets({driver: {KIND: self.kind} for driver in SIMULATED})


def read_pretended(text: str) -> SimulatedDevice:
    """The device in the JSON `text`. Raises `SettingsError`."""
    try:
        return SimulatedDevice.model_validate_json(text)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SettingsError(
            f"--pretend: {where}: {first['msg']}", hint="create it with: sark-node demo --fleet 8"
        ) from None
