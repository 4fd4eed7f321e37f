"""The checks of `sark-node doctor` on the device itself.

gather(…): reads for a second or two ─▶ HostFacts ─▶ checks(facts): pure ─▶ Check(subject, ok | note | bad, what, todo)
"""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from drivers.measure import host
from drivers.measure.meters import find_meters, rapl_zones
from drivers.measure.nvml import VARIABLE
from drivers.measure.timing import timer_overhead_ns
from drivers.sandbox.enter import Tier
from node.device.calibration import headline
from node.device.calibration_file import StoredCalibration, read_calibration
from node.device.probe import Profile
from protocol.values.requirement import show_size

LOOK_S: Final = 0.35
BUSY: Final = 0.05
HOT_C: Final = 85.0
SLOW_TIMER_NS: Final = 500
LITTLE_DISK: Final = 1 << 30
SMALL_DISK: Final = 10 << 30
TIME_ERROR: Final = 5
SET_CLOCK: Final = {
    "darwin": "System Settings, General, Date & Time: set it automatically; or: sudo sntp -sS time.apple.com",
    "win32": "in an administrator's prompt: w32tm /resync",
}.get(sys.platform, "sudo timedatectl set-ntp true")

GPU_RUNTIMES: Final = (
    "pip install 'sark-node[torch]' for Torch; for ONNX: pip install 'sark-node[cuda]', and then"
    " pip install --force-reinstall --no-deps onnxruntime-gpu, since the plain onnxruntime overwrites it"
)


class CheckState(StrEnum):
    """Result of a check."""

    OK = "ok"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of output: a finding, and what to do about it."""

    subject: str
    state: CheckState
    what: str
    todo: str = ""


def ok(subject: str, what: str) -> Check:
    return Check(subject, CheckState.OK, what)


def note(subject: str, what: str, todo: str = "") -> Check:
    return Check(subject, CheckState.NOTE, what, todo)


def bad(subject: str, what: str, todo: str = "") -> Check:
    return Check(subject, CheckState.BAD, what, todo)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The facts that were read. None: unknown on this system."""

    profile: Profile
    calibration: StoredCalibration
    governor: str | None = None
    others_share: float | None = None
    stall_share: float | None = None
    temperature_c: float | None = None
    on_battery: bool | None = None
    free_disk: int | None = None
    clock_synchronised: bool | None = None
    timer_ns: int = 0
    forbids: tuple[str, ...] = ()
    """Kernel settings that deny namespaces to users, with the value that is needed: `user.max_user_namespaces=15000`."""
    meters: tuple[str, ...] = ()
    """Energy meters, such as `rapl package-0`, without the GPUs' own."""
    hidden_meters: int = 0
    """Number of energy meters that only root may read."""


def gather(
    profile: Profile,
    calibration: Path,
    cache: Path,
    *,
    root: Path = Path("/"),
    wait: Callable[[float], None] = time.sleep,
) -> HostFacts:
    """Read everything (blocking). `calibration`: the calibration file; `cache`: the folder of the model cache."""
    reader = host.HostReader(root)
    before = reader.look()
    wait(LOOK_S)
    after = reader.look()
    state = host.state(before, after, 0.0, reader)
    meters = find_meters(root, gpu=True, clock=time.perf_counter_ns)
    return HostFacts(
        profile=profile,
        calibration=read_calibration(calibration, profile.fingerprint),
        governor=_governor(root),
        others_share=state.others_share,
        stall_share=host.stall_share(before, after),
        temperature_c=state.temperature_c,
        on_battery=state.on_battery,
        free_disk=_free(cache),
        clock_synchronised=clock_synchronised(),
        timer_ns=timer_overhead_ns(),
        forbids=_forbids(root),
        meters=tuple(f"{one.source} {one.device}" for one in meters),
        hidden_meters=len(rapl_zones(root)) - sum(one.source == "rapl" for one in meters),
    )


def _governor(root: Path) -> str | None:
    try:
        return (root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text().strip() or None
    except OSError:
        return None


_NAMESPACES: Final = (
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("user.max_user_namespaces", "0", "15000"),
)
"""(setting, value that denies namespaces, value that permits them)."""


def _forbids(root: Path) -> tuple[str, ...]:
    changes = []
    for name, bad, good in _NAMESPACES:
        with contextlib.suppress(OSError):
            if (root / "proc/sys" / name.replace(".", "/")).read_text().strip() == bad:
                changes.append(f"{name}={good}")
    return tuple(changes)


def _free(folder: Path) -> int | None:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def clock_synchronised(system: str = sys.platform) -> bool | None:
    """Whether the kernel's clock follows a time server; None: unknown (known on Linux only)."""
    if system != "linux":
        return None
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != TIME_ERROR


def checks(facts: HostFacts) -> list[Check]:
    """All checks, in display order. Pure."""
    return [
        *_units(facts.profile),
        *_gpus(facts.profile),
        _calibration(facts.calibration),
        _sandbox(facts.profile, facts.forbids),
        _governed(facts.governor),
        _busy(facts),
        _warmth(facts.temperature_c),
        _power(facts.on_battery),
        _energy(facts.meters, facts.hidden_meters),
        _disk(facts.free_disk),
        _clock(facts.clock_synchronised),
        _timer(facts.timer_ns),
    ]


def _units(profile: Profile) -> list[Check]:
    working = [ok("unit", f"{offer.unit}: {offer.runtime} ran a model") for offer in profile.units]
    broken = [note("unit", line) for line in profile.notes if line not in profile.gpu_report.notes]
    none = bad("units", "none works", "install a runtime: pip install sark-node")
    return (working or [none]) + broken


def _gpus(profile: Profile) -> list[Check]:
    result = profile.gpu_report
    lines = [_gpu_trouble(line) for line in result.notes]
    if not result.gpus:
        return lines or [ok("GPU", "none found by NVML or torch")]
    names = ", ".join(gpu.name for gpu in result.gpus)
    lines.append(ok("GPU", f"{names} (from {result.source})"))
    if result.source != "nvml":
        what = "NVML does not answer, so power, energy, clocks and memory of the GPU stay empty"
        lines.append(note("GPU", what, "for NVIDIA: install the driver with its libnvidia-ml"))
    if not any("GPU" in offer.unit or "DirectML" in offer.unit for offer in profile.units):
        what = "no unit runs on this GPU"
        lines.append(note("GPU", what, GPU_RUNTIMES))
    return lines


def _gpu_trouble(line: str) -> Check:
    if line.startswith(VARIABLE):
        return note("GPU", line, f"unset {VARIABLE}, or name one that `nvidia-smi -L` lists")
    return bad("GPU", line, "reinstall the driver, or restart after updating it")


def _calibration(stored: StoredCalibration) -> Check:
    if stored.calibration is None:
        return note("calibration", stored.missing, "sark-node calibrate")
    text = "; ".join((headline(stored.calibration), *stored.calibration.notes))
    if stored.calibration.quiet is False:
        return note("calibration", text, "sark-node calibrate --force --wait 10m")
    if stored.calibration.notes:
        return note("calibration", text, "sark-node calibrate --force")
    return ok("calibration", text)


def _sandbox(profile: Profile, forbids: Sequence[str]) -> Check:
    what = "; ".join((str(profile.sandbox), *profile.sandbox_notes))
    if profile.sandbox is Tier.FULL:
        return ok("sandbox", what)
    todo = "serve only people you know; strangers need the full sandbox"
    if forbids:
        lines = "\\n".join(forbids)
        todo += (
            f"\nfor the full sandbox: sudo sysctl -w {' '.join(forbids)}"
            f"\nto keep that after a reboot: printf '{lines}\\n' | sudo tee /etc/sysctl.d/60-sark.conf"
        )
    return note("sandbox", what, todo)


def _governed(governor: str | None) -> Check:
    if governor is None:
        return ok("governor", "unknown on this system")
    if governor == "performance":
        return ok("governor", governor)
    return note(
        "governor",
        f"{governor}: the clock follows the load, so short runs get a low clock",
        "for stable results: cpupower frequency-set -g performance",
    )


def _busy(facts: HostFacts) -> Check:
    shares = (("other processes", facts.others_share), ("waiting for a processor", facts.stall_share))
    measured = [(name, share) for name, share in shares if share is not None]
    if not measured:
        return note("load", "unknown on this system, so a busy host looks like a slow one")
    text = ", ".join(f"{name} {share:.0%}" for name, share in measured)
    if max(share for _, share in measured) > BUSY:
        todo = "close other programs; measurements wait for an idle host and flag a busy one"
        return note("load", text, todo)
    return ok("load", text)


def _warmth(celsius: float | None) -> Check:
    if celsius is None:
        return ok("heat", "no sensor")
    if celsius >= HOT_C:
        return note("heat", f"{celsius:.0f} °C", "let it cool; a hot processor throttles")
    return ok("heat", f"{celsius:.0f} °C")


def _power(on_battery: bool | None) -> Check:
    if on_battery:
        return note("power", "on battery", "plug it in, or run: sark-node join --on-battery")
    return ok("power", "no battery" if on_battery is None else "not on battery")


def _energy(meters: Sequence[str], hidden: int) -> Check:
    if hidden:
        what = "RAPL counts the processor's energy, but only root can read it"
        todo = (
            "until the next reboot: sudo chmod o+r /sys/class/powercap/intel-rapl:*/energy_uj"
            "\non a shared machine, other users can then guess what it computes; to use a wall meter: SARK_METER=FILE"
        )
        return note("energy", what, todo)
    if not meters:
        return ok("energy", "no meter except a GPU's own; to use a wall meter: SARK_METER=FILE")
    return ok("energy", ", ".join(meters))


def _disk(free: int | None) -> Check:
    if free is None:
        return note("disk", "free space is unknown")
    what = f"{show_size(free)} free for models"
    if free < LITTLE_DISK:
        return bad("disk", what, "free space, or move the home: --home FOLDER")
    if free < SMALL_DISK:
        todo = "models take up to half of it; free space, or move the home: --home FOLDER"
        return note("disk", what, todo)
    return ok("disk", what)


def _clock(synchronised: bool | None) -> Check:
    if synchronised is False:
        what = "does not follow a time server; tickets and tokens need the right time"
        return note("clock", what, SET_CLOCK)
    return ok("clock", "synchronised" if synchronised else "unknown on this system")


def _timer(overhead_ns: int) -> Check:
    what = f"reading the clock takes {overhead_ns} ns"
    if overhead_ns > SLOW_TIMER_NS:
        return note("timer", what, "short models are timed in groups; check the clock source")
    return ok("timer", what)
