"""Probes this device once at start, cleans the values for the wire, and makes an advert of them.

This module only reads; `node.device.probe_parsers` interprets the texts. An unknown value stays empty, and a note says why.
"""

from __future__ import annotations

import platform
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from drivers.contract.base import UnitInfo
from drivers.launch.launch import ProbedUnits
from drivers.launch.probe_tier import TierProbe
from drivers.measure.gpu import Gpu, GpuReport
from drivers.sandbox.enter import Tier
from node.device import probe_parsers
from node.device.gpu_units import ANY_GPU, NO_GPUS, DeviceGpus, GpuChoice
from node.device.monitor import DeviceMonitor
from protocol.errors import LocalProtocolError
from protocol.formats.frameworks import FORMATS_BY_FRAMEWORK, framework_of
from protocol.values.advert import MAX_ADVERT, Advert, GpuInfo, UnitOffer
from protocol.values.features import FEATURES, SIMULATED_FEATURES
from protocol.values.reading import Sensor
from protocol.values.record import DeviceFacts
from protocol.wire.codec import pack
from swarm.base.durable import write_durably
from swarm.base.text import ascii_line, ascii_name

TOOL_S: Final = 5.0
ROOT: Final = Path("/")
MAX_UNITS: Final = 12
"""Most units in an advert."""
NOT_TRIED: Final = TierProbe(Tier.NONE, ("not tried out",))


@dataclass(frozen=True, slots=True)
class Profile:
    """One device, as far as it is known. Sizes are in bytes; empty or None: unknown."""

    device: str
    name: str
    soc: str = ""
    os: str = ""
    arch: str = ""
    cores: int | None = None
    threads: int | None = None
    ram: int | None = None
    units: tuple[UnitOffer, ...] = ()
    drivers: Mapping[str, str] = field(default_factory=dict)
    """Unit → name of the driver that has it."""
    gpus: tuple[GpuInfo, ...] = ()
    gpu_report: GpuReport = field(default_factory=GpuReport)
    """All GPUs with everything that their source reports, including those that no unit uses."""
    gpu_choice: GpuChoice = ANY_GPU
    notes: tuple[str, ...] = ()
    """The facts that could not be determined, and why."""
    sandbox: Tier = Tier.NONE
    """The sandbox tier of a run on this device, found by trying it."""
    sandbox_notes: tuple[str, ...] = ()
    """Why the tier is not higher."""
    simulated: bool = False
    """The device is simulated; see `node.device.simulated`."""
    monitors: tuple[Sensor, ...] = ()
    """The sensors that can be shown live."""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of hardware and software: equal for two devices of the same make with the same system and runtimes."""
        return probe_parsers.fingerprint(
            soc=self.soc,
            cores=self.cores,
            threads=self.threads,
            ram=self.ram,
            system=self.os,
            arch=self.arch,
            gpus=[(gpu.name, gpu.vram, gpu.driver) for gpu in self.gpus],
            runtimes=[(offer.unit, offer.runtime) for offer in self.units],
        )

    def driver_of(self, unit: str) -> str | None:
        return self.drivers.get(unit)


def probe_device(
    data: Path,
    probe_units: Callable[[], ProbedUnits],
    *,
    sandbox: TierProbe = NOT_TRIED,
    wanted_name: str = "",
    on: DeviceGpus = NO_GPUS,
    monitor: DeviceMonitor | None = None,
) -> Profile:
    """Probe this device (blocking, a second or two for the units). `data`: the folder for a device id if the system has none; `sandbox`:
    the result of `drivers.launch.probe_tier.probe`; `on`: the device's GPUs.
    """
    notes: list[str] = []
    result = probe_units()
    notes += [*on.report.notes, *result.troubles]
    if len(result.units) > MAX_UNITS:
        more = [one.unit for one in result.units[MAX_UNITS:]]
        notes.append(
            f"an advert holds at most {MAX_UNITS} units: {len(more)} are left out, the first is {more[0]}"
        )
    host = ascii_name(wanted_name or socket.gethostname().split(".")[0], "device")
    return Profile(
        device=probe_parsers.device_of(read_machine_id()) or kept_device_id(data / "device-id"),
        name=host,
        soc=ascii_line(read_soc()),
        os=ascii_line(read_os()),
        arch=ascii_line(platform.machine()),
        cores=psutil.cpu_count(logical=False) or None,
        threads=psutil.cpu_count(logical=True) or None,
        ram=read_ram(),
        units=tuple(
            UnitOffer(
                unit=ascii_line(unit.unit),
                runtime=ascii_line(unit.runtime),
                formats=_advertised_formats(unit),
            )
            for unit in result.units[:MAX_UNITS]
        ),
        drivers={ascii_line(unit.unit): unit.driver for unit in result.units},
        gpus=read_gpus(on.used, on.numbers if on.choice.chosen else ()),
        gpu_report=on.report,
        gpu_choice=on.choice,
        notes=tuple(ascii_line(note) for note in notes),
        sandbox=sandbox.tier,
        sandbox_notes=tuple(ascii_line(reason) for reason in sandbox.reasons),
        monitors=(monitor or DeviceMonitor(gpus=on.numbers)).sensors(),
    )


def trouble_with(profile: Profile, probe_units: Callable[[], ProbedUnits]) -> str:
    """Which units of this device no longer run their one-line models, in words (blocking, a second or two). Empty: all run."""
    result = probe_units()
    works = {ascii_line(unit.unit) for unit in result.units}
    gone = [offer.unit for offer in profile.units if offer.unit not in works]
    if not gone:
        return ""
    why = f" ({'; '.join(ascii_line(note) for note in result.troubles)})" if result.troubles else ""
    return f"a check finds that {', '.join(gone)} no longer works here{why}"


def _advertised_formats(unit: UnitInfo) -> tuple[str, ...] | None:
    """The formats of `unit` to advertise; None if other nodes know them from its framework, or there are none."""
    return None if framework_of(unit.unit) in FORMATS_BY_FRAMEWORK else unit.formats or None


# -- reading -------------------------------------------------------------------------------------------------------------


def read_soc(system: str = sys.platform, root: Path = ROOT) -> str:
    if system == "darwin":
        return _tool("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string")
    if system == "win32":
        return (
            _registry(r"HARDWARE\DESCRIPTION\System\CentralProcessor\0", "ProcessorNameString")
            or platform.processor()
        )
    cpu = probe_parsers.cpu_of_cpuinfo(_text(root / "proc/cpuinfo"))
    dmi = root / "sys/devices/virtual/dmi/id"
    board = probe_parsers.board_of(
        _text(root / "proc/device-tree/model"), _text(dmi / "sys_vendor"), _text(dmi / "product_name")
    )
    return cpu or board


def read_os(system: str = sys.platform, root: Path = ROOT) -> str:
    if system == "darwin":
        return f"macOS {platform.mac_ver()[0]}".strip()
    if system == "win32":
        return probe_parsers.windows_name(platform.release(), platform.version())
    release = probe_parsers.os_of_release(
        _text(root / "etc/os-release") or _text(root / "usr/lib/os-release")
    )
    return f"{release or 'Linux'} ({platform.system()} {platform.release()})"


def read_machine_id(system: str = sys.platform, root: Path = ROOT) -> str:
    """The system's own id of this machine, of which only a hash is used."""
    if system == "darwin":
        return probe_parsers.uuid_of_ioreg(_tool("/usr/sbin/ioreg", "-rd1", "-c", "IOPlatformExpertDevice"))
    if system == "win32":
        return _registry(r"SOFTWARE\Microsoft\Cryptography", "MachineGuid")
    return _text(root / "etc/machine-id") or _text(root / "var/lib/dbus/machine-id")


def lock_name(system: str = sys.platform, root: Path = ROOT) -> str:
    """The name that the workers of one host lock while they measure. It is the same for all of them even if the host has no id
    (containers), where each home has a device id of its own.
    """
    return probe_parsers.device_of(read_machine_id(system, root)) or "a host without an id"


def kept_device_id(path: Path) -> str:
    """A random id for a machine that has none, the same at each start. A damaged id is replaced."""
    try:
        stored = path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        stored = ""
    if stored.startswith("d-") and len(stored) == 18 and stored[2:].isalnum() and stored.isascii():
        return stored
    fresh = "d-" + secrets.token_hex(8)
    write_durably(path, fresh.encode() + b"\n")
    return fresh


def read_ram(root: Path = ROOT) -> int | None:
    """Bytes of memory that this process may use: the machine's memory, or its container's limit if that is lower."""
    limits = [int(psutil.virtual_memory().total)]
    group = probe_parsers.cgroup_of(_text(root / "proc/self/cgroup"))
    folders = [root / "sys/fs/cgroup", *(root / "sys/fs/cgroup" / part for part in group)]
    for folder in folders:
        text = _text(folder / "memory.max").strip()
        if text.isdigit():
            limits.append(int(text))
    text = _text(root / "sys/fs/cgroup/memory/memory.limit_in_bytes").strip()  # version 1 of control groups
    return min([*limits, int(text)] if text.isdigit() else limits) or None


def read_gpus(gpus: Sequence[Gpu], numbers: Sequence[int] = ()) -> tuple[GpuInfo, ...]:
    """The GPUs for an advert. `numbers`: their numbers, if units name them."""
    named: Sequence[int | None] = numbers or [None] * len(gpus)
    return tuple(
        GpuInfo(name=ascii_line(gpu.name), vram=gpu.vram, driver=ascii_line(gpu.driver), number=number)
        for gpu, number in zip(gpus, named, strict=True)
    )


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _tool(*command: str) -> str:
    """The output of a system tool; empty if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=TOOL_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else ""


def _registry(key: str, value: str) -> str:
    if sys.platform == "win32":
        import winreg

        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as opened:
                return str(winreg.QueryValueEx(opened, value)[0])
        except OSError:
            return ""
    return ""


# -- adverts and records -------------------------------------------------------------------------------------------------


def build_advert(
    profile: Profile,
    peer: str,
    *,
    addresses: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    models: Sequence[str] = (),
    version: str = "",
    pools: Sequence[str] = (),
) -> Advert:
    """The advert of a device. Optional parts are left out, the least useful first, until the advert fits in 1 KiB.

    Raises `LocalProtocolError` if labels alone make it too large: the owner set them, and they are never dropped silently.
    """
    advert = Advert(
        peer=peer,
        seq=0,
        addresses=tuple(addresses[:8]),
        **_shared(profile),
        version=ascii_line(version),
        threads=profile.threads,
        units=profile.units,
        gpus=profile.gpus,
        labels=dict(labels or {}),
        models=tuple(models[:4]),
        pools=tuple(pools[:4]),
        sandbox=profile.sandbox.value,
        simulated=profile.simulated or None,
        monitors=tuple(map(str, profile.monitors)) or None,
        features=SIMULATED_FEATURES if profile.simulated else FEATURES,
    )
    for smaller in _diets(advert):
        largest = smaller.model_copy(update={"seq": 2**53})
        if len(pack(largest.to_wire())) <= MAX_ADVERT:
            return smaller
    raise LocalProtocolError(
        f"this node's advert does not fit in {MAX_ADVERT} bytes", hint="use fewer or shorter labels"
    )


def _diets(advert: Advert) -> list[Advert]:
    """The advert, then smaller and smaller versions of it."""
    diets = [advert]

    def without(**changes: Any) -> None:
        diets.append(diets[-1].model_copy(update=changes))

    without(monitors=None)
    for keep in range(len(advert.models) - 1, -1, -1):
        without(models=advert.models[:keep])
    without(gpus=tuple(gpu.model_copy(update={"driver": ""}) for gpu in advert.gpus))
    without(gpus=diets[-1].gpus[:2])
    without(soc=advert.soc[:60], os=advert.os[:40], version=advert.version[:20])
    without(units=tuple(unit.model_copy(update={"runtime": unit.runtime[:20]}) for unit in advert.units))
    without(gpus=diets[-1].gpus[:1])
    for count in (4, 2, 1):
        without(addresses=_fewer(advert.addresses, count))
    without(units=tuple(unit.model_copy(update={"formats": None}) for unit in diets[-1].units))
    without(features=None)
    for keep in range(len(advert.units) - 1, 0, -1):
        without(units=diets[-1].units[:keep])
    return diets


def _fewer(addresses: Sequence[str], count: int) -> tuple[str, ...]:
    """The best `count` of `addresses`, among them one through a gate if there is any."""
    through = [address for address in addresses if address.endswith("/p2p-circuit")]
    direct = [address for address in addresses if address not in through]
    gates = through[: max(1, count // 2)]
    return (*direct[: count - len(gates)], *gates)


def device_facts(profile: Profile, version: str) -> DeviceFacts:
    return DeviceFacts(
        **_shared(profile),
        version=ascii_line(version),
        fingerprint=profile.fingerprint,
        simulated=profile.simulated or None,
    )


def _shared(profile: Profile) -> dict[str, Any]:
    """The facts about a device that have the same names in an advert and in a record."""
    names = ("device", "name", "soc", "ram", "os", "arch", "cores")
    return {name: getattr(profile, name) for name in names}


def memory_cap(profile: Profile, share: float) -> int:
    """Bytes that a run may take: a share of this device's memory, or of the available memory if the total is unknown."""
    ram = None if profile.simulated else profile.ram
    total = ram or int(psutil.virtual_memory().available)
    return max(64 * 1024**2, int(total * share))
