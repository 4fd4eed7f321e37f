"""Parsers of system information: pure functions from the text of a file or a tool's output to one fact.

Each returns an empty string or None if the text does not state the fact; nothing is guessed. The readers are in `node.device.probe`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Final

_DEVICE_CONTEXT: Final = b"sark device 1\n"
_FINGERPRINT_CONTEXT: Final = b"sark fingerprint 1\n"
_QUARTER_GIB: Final = 1 << 28
_NO_NAME: Final = frozenset(
    {
        "",
        "to be filled by o.e.m.",
        "system product name",
        "default string",
        "not specified",
        "none",
        "unknown",
    }
)
_ARM_MAKERS: Final = {"0x41": "ARM", "0x51": "Qualcomm", "0x61": "Apple", "0xc0": "Ampere"}
_ARM_PARTS: Final = {
    ("0x41", "0xd03"): "Cortex-A53",
    ("0x41", "0xd05"): "Cortex-A55",
    ("0x41", "0xd07"): "Cortex-A57",
    ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd0b"): "Cortex-A76",
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
}


def cgroup_of(text: str) -> tuple[str, ...]:
    """Folders of a process's control group and of the groups above it, from `/proc/self/cgroup`: `a`, `a/b`; none for the root."""
    for shown in text.splitlines():
        number, _, rest = shown.partition("::")
        parts = [part for part in rest.split("/") if part]
        if number == "0" and ".." not in parts:
            return tuple("/".join(parts[: count + 1]) for count in range(len(parts)))
    return ()


def cpu_of_cpuinfo(text: str) -> str:
    """The processor's name from `/proc/cpuinfo`. x86 has `model name`, some ARM kernels `Hardware` or only numbers."""
    fields = _fields(text)
    for key in ("model name", "Hardware", "cpu model"):
        if fields.get(key) and not fields[key].isdigit():
            return fields[key]
    maker, part = fields.get("CPU implementer", "").lower(), fields.get("CPU part", "").lower()
    if (maker, part) in _ARM_PARTS:
        return f"{_ARM_MAKERS[maker]} {_ARM_PARTS[maker, part]}"
    return f"{_ARM_MAKERS.get(maker, 'CPU implementer ' + maker)} part {part}" if maker and part else ""


def board_of(device_tree: str, dmi_vendor: str, dmi_product: str) -> str:
    """A board's name: the device tree's model (which ends in a zero byte), else the firmware's name for the machine."""
    model = device_tree.replace("\x00", "").strip()
    if model:
        return model
    words = [word.strip() for word in (dmi_vendor, dmi_product) if word.strip().lower() not in _NO_NAME]
    return " ".join(words)


def os_of_release(text: str) -> str:
    """Name and version from `/etc/os-release`, such as `Ubuntu 24.04`."""
    values = {
        key: value.strip().strip("\"'")
        for key, _, value in (row.partition("=") for row in text.splitlines())
        if value
    }
    if values.get("NAME") and values.get("VERSION_ID"):
        return f"{values['NAME']} {values['VERSION_ID']}"
    return values.get("PRETTY_NAME") or values.get("NAME", "")


def uuid_of_ioreg(text: str) -> str:
    """The IOPlatformUUID in the output of `ioreg -rd1 -c IOPlatformExpertDevice`."""
    match = re.search(r'"IOPlatformUUID"\s*=\s*"([0-9A-Fa-f-]{36})"', text)
    return match[1] if match else ""


def device_of(machine_id: str) -> str:
    """The device id: a hash with a context of our own, so that the machine's own id never leaves it. Empty if the machine's id is unset."""
    plain = machine_id.strip().lower()
    if len(plain) < 8 or plain == "uninitialized" or set(plain) <= {"0", "-"}:
        return ""
    return "d-" + hashlib.sha256(_DEVICE_CONTEXT + plain.encode()).hexdigest()[:16]


def fingerprint(
    *,
    soc: str,
    cores: int | None,
    threads: int | None,
    ram: int | None,
    system: str,
    arch: str,
    gpus: Sequence[tuple[str, int | None, str]],
    runtimes: Sequence[tuple[str, str]],
) -> str:
    """The sha256 of a device's hardware and software, as 64 hexadecimal digits. `gpus`: name, bytes, driver; `runtimes`: unit, runtime.

    Memory is rounded to quarters of a GiB, because the amount that kernels reserve varies a little.
    """
    parts = {
        "soc": soc,
        "cores": cores,
        "threads": threads,
        "ram": None if ram is None else round(ram / _QUARTER_GIB),
        "system": system,
        "arch": arch,
        "gpus": [list(gpu) for gpu in gpus],
        "runtimes": sorted(list(unit) for unit in runtimes),
    }
    shown = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(_FINGERPRINT_CONTEXT + shown.encode()).hexdigest()


def windows_name(release: str, version: str) -> str:
    """`Windows 11 10.0.26100` from the values of `platform`. Builds from 22000 on are Windows 11, whatever the registry calls them."""
    build = version.rsplit(".", 1)[-1]
    if release == "10" and build.isdigit() and int(build) >= 22_000:
        release = "11"
    return f"Windows {release} {version}".strip()


def _fields(text: str) -> dict[str, str]:
    """First value of each `key : value` line."""
    fields: dict[str, str] = {}
    for row in text.splitlines():
        key, colon, value = row.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    return fields
