"""What `sark-node doctor` says: what of this device helps measuring or stands in its way, line by line, and what to do about it.

gather(…) reads, blocking, a second or two ─▶ Signs ─▶ checks(signs): pure ─▶ Check(subject, ok | note | bad, what, todo)
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
from drivers.measure.timing import timer_overhead_ns
from drivers.sandbox.rlimits import Tier
from node.device import calibration
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
    "win32": "in a prompt of an administrator: w32tm /resync",
}.get(sys.platform, "sudo timedatectl set-ntp true")


class CheckState(StrEnum):
    """How a check stands."""

    OK = "ok"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Check:
    """One line."""

    subject: str
    state: CheckState
    what: str
    todo: str = ""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What was read. None: this system does not tell."""

    profile: Profile
    enrolled: calibration.CalibrationFile
    governor: str | None = None
    others_share: float | None = None
    stall_share: float | None = None
    temperature_c: float | None = None
    on_battery: bool | None = None
    free_disk: int | None = None
    clock_synchronised: bool | None = None
    timer_ns: int = 0
    forbids: tuple[str, ...] = ()
    """Settings of the kernel that keep a user from namespaces, as they would have to be: `user.max_user_namespaces=15000`."""


def gather(
    profile: Profile,
    folder: Path,
    cache: Path,
    *,
    root: Path = Path("/"),
    wait: Callable[[float], None] = time.sleep,
) -> HostFacts:
    """Read everything (blocking). `folder`: the worker's; `cache`: where models are kept."""
    reader = host.HostReader(root)
    before = reader.look()
    wait(LOOK_S)
    after = reader.look()
    seen = host.state(before, after, 0.0, reader)
    return HostFacts(
        profile=profile,
        enrolled=calibration.kept(folder, profile.fingerprint),
        governor=_governor(root),
        others_share=seen.others_share,
        stall_share=host.stall_share(before, after),
        temperature_c=seen.temperature_c,
        on_battery=seen.on_battery,
        free_disk=_free(cache),
        clock_synchronised=clock_synchronised(),
        timer_ns=timer_overhead_ns(),
        forbids=_forbids(root),
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
"""Setting, the value that forbids, the one that does not."""


def _forbids(root: Path) -> tuple[str, ...]:
    found = []
    for name, bad, good in _NAMESPACES:
        with contextlib.suppress(OSError):
            if (root / "proc/sys" / name.replace(".", "/")).read_text().strip() == bad:
                found.append(f"{name}={good}")
    return tuple(found)


def _free(folder: Path) -> int | None:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def clock_synchronised(system: str = sys.platform) -> bool | None:
    """Whether the kernel's clock follows a time server; None where the system does not say (only Linux is asked)."""
    if system != "linux":
        return None
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != TIME_ERROR


# -- judging -------------------------------------------------------------------------------------------------------------


def checks(signs: HostFacts) -> list[Check]:
    """All lines, in the order in which they are shown. Pure."""
    return [
        *_units(signs.profile),
        *_gpus(signs.profile),
        _enrolled(signs.enrolled),
        _sandbox(signs.profile, signs.forbids),
        _governed(signs.governor),
        _busy(signs),
        _warmth(signs.temperature_c),
        _power(signs.on_battery),
        _disk(signs.free_disk),
        _clock(signs.clock_synchronised),
        _timer(signs.timer_ns),
    ]


def _units(profile: Profile) -> list[Check]:
    if not profile.units:
        found = [Check("units", CheckState.BAD, "none works", "install a runtime: pip install sark-node")]
    else:
        found = [
            Check("unit", CheckState.OK, f"{offer.unit}: {offer.runtime} ran a model")
            for offer in profile.units
        ]
    troubles = [note for note in profile.notes if note not in profile.found.notes]
    return found + [Check("unit", CheckState.NOTE, note) for note in troubles]


def _gpus(profile: Profile) -> list[Check]:
    found = profile.found
    lines = [
        Check("GPU", CheckState.BAD, note, "install the driver again, or restart after its update")
        for note in found.notes
    ]
    if not found.gpus:
        return lines or [Check("GPU", CheckState.OK, "none found by NVML, torch or nvidia-smi")]
    names = ", ".join(gpu.name for gpu in found.gpus)
    lines.append(Check("GPU", CheckState.OK, f"{names} (told by {found.source})"))
    if found.source != "nvml":
        what = "NVML does not answer: power, energy, clocks and memory of the GPU stay empty"
        lines.append(
            Check("GPU", CheckState.NOTE, what, "for NVIDIA: install the driver with its libnvidia-ml")
        )
    if not any("GPU" in offer.unit or "DirectML" in offer.unit for offer in profile.units):
        what = "a GPU is here and no unit runs on it"
        lines.append(
            Check("GPU", CheckState.NOTE, what, "install a runtime for it: pip install 'sark-node[cuda]'")
        )
    return lines


def _enrolled(kept: calibration.CalibrationFile) -> Check:
    if kept.found is None:
        return Check("enrolment", CheckState.NOTE, kept.why, "sark-node enroll")
    said = calibration.headline(kept.found)
    if kept.found.notes:
        return Check(
            "enrolment", CheckState.NOTE, "; ".join((said, *kept.found.notes)), "sark-node enroll --again"
        )
    return Check("enrolment", CheckState.OK, said)


def _sandbox(profile: Profile, forbids: Sequence[str]) -> Check:
    what = "; ".join((str(profile.sandbox), *profile.sandbox_notes))
    if profile.sandbox is Tier.FULL:
        return Check("sandbox", CheckState.OK, what)
    todo = "run models only of those you know; strangers need the full one"
    if forbids:
        lines = "\\n".join(forbids)
        todo += (
            f"\nfor the full one: sudo sysctl -w {' '.join(forbids)}"
            f"\nto keep that after a reboot: printf '{lines}\\n' | sudo tee /etc/sysctl.d/60-sark.conf"
        )
    return Check("sandbox", CheckState.NOTE, what, todo)


def _governed(governor: str | None) -> Check:
    if governor is None:
        return Check("governor", CheckState.OK, "this system does not tell how it sets the processor's clock")
    if governor == "performance":
        return Check("governor", CheckState.OK, governor)
    return Check(
        "governor",
        CheckState.NOTE,
        f"{governor}: the processor's clock follows its load, and short runs see a low one",
        "for steady figures: cpupower frequency-set -g performance",
    )


def _busy(signs: HostFacts) -> Check:
    told = [
        f"{name} {share:.0%}"
        for name, share in (
            ("others use", signs.others_share),
            ("waiting for a processor", signs.stall_share),
        )
        if share is not None
    ]
    if not told:
        return Check(
            "load", CheckState.NOTE, "this system does not tell: a busy host cannot be told from a slow one"
        )
    busy = max(share for share in (signs.others_share, signs.stall_share) if share is not None) > BUSY
    if busy:
        return Check(
            "load", CheckState.NOTE, ", ".join(told), "end what else runs; measuring waits and flags it"
        )
    return Check("load", CheckState.OK, ", ".join(told))


def _warmth(celsius: float | None) -> Check:
    if celsius is None:
        return Check("heat", CheckState.OK, "no sensor")
    if celsius >= HOT_C:
        return Check("heat", CheckState.NOTE, f"{celsius:.0f} °C", "let it cool; a hot processor is slowed")
    return Check("heat", CheckState.OK, f"{celsius:.0f} °C")


def _power(on_battery: bool | None) -> Check:
    if on_battery:
        return Check("power", CheckState.NOTE, "on battery", "plug it in, or: sark-node join --on-battery")
    return Check("power", CheckState.OK, "no battery is told of" if on_battery is None else "not on battery")


def _disk(free: int | None) -> Check:
    if free is None:
        return Check("disk", CheckState.NOTE, "free space is not known")
    what = f"{show_size(free)} free for models"
    if free < LITTLE_DISK:
        return Check("disk", CheckState.BAD, what, "make room, or keep the home elsewhere: --home")
    if free < SMALL_DISK:
        todo = "models take up to half of that; make room, or keep the home elsewhere: --home"
        return Check("disk", CheckState.NOTE, what, todo)
    return Check("disk", CheckState.OK, what)


def _clock(synchronised: bool | None) -> Check:
    if synchronised is False:
        what = "does not follow a time server: permissions and tickets have times"
        return Check("clock", CheckState.NOTE, what, SET_CLOCK)
    return Check("clock", CheckState.OK, "synchronised" if synchronised else "this system does not tell")


def _timer(overhead_ns: int) -> Check:
    what = f"reading the clock takes {overhead_ns} ns"
    if overhead_ns > SLOW_TIMER_NS:
        return Check("timer", CheckState.NOTE, what, "short models are timed in groups; see the clock source")
    return Check("timer", CheckState.OK, what)
