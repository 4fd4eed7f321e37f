"""What systems report about themselves, read from text, and the advert made from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from drivers.contract.base import UnitInfo
from drivers.launch.launch import ProbedUnits
from drivers.measure.gpu import Gpu, GpuReport
from node.device import probe_parsers
from node.device.gpu_units import DeviceGpus
from node.device.probe import (
    Profile,
    build_advert,
    device_facts,
    kept_device_id,
    lock_name,
    memory_cap,
    probe_device,
    read_gpus,
    read_ram,
    read_soc,
    trouble_with,
)
from protocol.errors import LocalProtocolError
from protocol.values.advert import MAX_ADVERT, GpuInfo, UnitOffer, advert_body
from protocol.values.features import FEATURES, FORGET
from protocol.values.reading import Sensor
from protocol.wire.base import Line, Name
from swarm.base.text import ascii_line, ascii_name

PEER = "12D3KooWAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAn"

X86 = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: 12th Gen Intel(R) Core(TM) i7-1260P
cpu MHz\t\t: 2500.000

processor\t: 1
model name\t: something else
"""
RASPBERRY = """processor\t: 0
BogoMIPS\t: 108.00
CPU implementer\t: 0x41
CPU architecture: 8
CPU part\t: 0xd0b

Hardware\t: BCM2712
Model\t\t: Raspberry Pi 5 Model B Rev 1.0
"""
GRAVITON = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
NEW_ARM = "processor\t: 0\nCPU implementer\t: 0x99\nCPU part\t: 0x001\n"


@pytest.mark.parametrize(
    ("text", "cpu"),
    [
        (X86, "12th Gen Intel(R) Core(TM) i7-1260P"),
        (RASPBERRY, "BCM2712"),
        (GRAVITON, "ARM Neoverse-V1"),
        (NEW_ARM, "CPU implementer 0x99 part 0x001"),
        ("", ""),
        ("junk without a colon", ""),
    ],
)
def test_a_processor_is_named_from_cpuinfo(text: str, cpu: str) -> None:
    assert probe_parsers.cpu_of_cpuinfo(text) == cpu


def test_a_board_is_named_from_the_device_tree_or_the_firmware() -> None:
    assert probe_parsers.board_of("NVIDIA Jetson Orin Nano\x00", "", "") == "NVIDIA Jetson Orin Nano"
    assert probe_parsers.board_of("", "LENOVO\n", "20XW\n") == "LENOVO 20XW"
    assert probe_parsers.board_of("", "To Be Filled By O.E.M.\n", "System Product Name\n") == ""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('NAME="Ubuntu"\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\n', "Ubuntu 24.04"),
        ('PRETTY_NAME="Arch Linux"\nNAME="Arch Linux"\n', "Arch Linux"),
        ("", ""),
    ],
)
def test_a_linux_is_named_from_os_release(text: str, name: str) -> None:
    assert probe_parsers.os_of_release(text) == name


def test_windows_11_calls_itself_10_and_is_named_11() -> None:
    assert probe_parsers.windows_name("10", "10.0.26100") == "Windows 11 10.0.26100"
    assert probe_parsers.windows_name("10", "10.0.19045") == "Windows 10 10.0.19045"


def test_a_mac_is_known_by_its_platform_uuid() -> None:
    shown = '+-o J314sAP\n  "IOPlatformUUID" = "01234567-89AB-CDEF-0123-456789ABCDEF"\n'
    assert probe_parsers.uuid_of_ioreg(shown) == "01234567-89AB-CDEF-0123-456789ABCDEF"
    assert probe_parsers.uuid_of_ioreg("nothing") == ""


def test_a_device_id_is_a_hash_that_does_not_show_the_machines_own() -> None:
    machine = "0123456789abcdef0123456789abcdef"
    device = probe_parsers.device_of(machine + "\n")
    assert device == probe_parsers.device_of(machine.upper())
    assert device.startswith("d-")
    assert machine[:8] not in device
    assert probe_parsers.device_of("f" * 32) != device
    for unset in ("", "uninitialized", "0" * 32, "00000000-0000-0000-0000-000000000000"):
        assert probe_parsers.device_of(unset) == ""


def test_a_machine_without_an_id_keeps_a_random_one(tmp_path: Path) -> None:
    path = tmp_path / "device-id"
    stored = kept_device_id(path)
    assert kept_device_id(path) == stored
    path.write_text("rubbish\x1b[31m")
    replaced = kept_device_id(path)
    assert replaced != stored
    assert kept_device_id(path) == replaced


def test_workers_of_one_host_lock_the_same_whether_or_not_it_has_an_id(tmp_path: Path) -> None:
    without = lock_name("linux", tmp_path)
    assert without
    assert lock_name("linux", tmp_path) == without
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    assert (
        lock_name("linux", tmp_path) == probe_parsers.device_of("0123456789abcdef0123456789abcdef") != without
    )


def test_a_linux_is_read_from_its_files(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\n")
    (tmp_path / "proc/device-tree").mkdir()
    (tmp_path / "proc/device-tree/model").write_bytes(b"Radxa ROCK 5B\x00")
    assert read_soc("linux", tmp_path) == "Radxa ROCK 5B"
    (tmp_path / "proc/cpuinfo").write_text(X86)
    assert read_soc("linux", tmp_path) == "12th Gen Intel(R) Core(TM) i7-1260P"


def test_this_very_machine_can_be_read(tmp_path: Path) -> None:
    units = ProbedUnits((UnitInfo("CPU (ONNX)", "onnx", "onnxruntime 1"),), ("driver 'x' does not load",))
    observed = probe_device(tmp_path, lambda: units, wanted_name="Ann's böx")
    assert observed.name == "Ann-s box"
    assert observed.threads
    assert observed.ram
    assert observed.os
    assert observed.arch
    assert observed.driver_of("CPU (ONNX)") == "onnx"
    assert observed.driver_of("GPU (ONNX)") is None
    assert "driver 'x' does not load" in observed.notes
    advert_body(build_advert(observed, PEER))
    assert device_facts(observed, "0.1").soc == observed.soc


def test_gpus_stand_in_the_advert_as_their_source_tells_them() -> None:
    gpus = (Gpu("NVIDIA H100", 80 * 1024**3, "550.54"), Gpu("NVIDIA GB10", driver="580"))
    assert read_gpus(gpus) == (
        GpuInfo(name="NVIDIA H100", vram=80 * 1024**3, driver="550.54"),
        GpuInfo(name="NVIDIA GB10", driver="580"),
    )


def test_a_gpu_source_that_does_not_work_is_a_note_of_the_device(tmp_path: Path) -> None:
    profile = probe_device(
        tmp_path,
        lambda: ProbedUnits((), ()),
        on=DeviceGpus(GpuReport(notes=("NVIDIA driver: mismatch",))),
    )
    assert profile.gpus == ()
    assert "NVIDIA driver: mismatch" in profile.notes


@given(st.text())
def test_any_text_becomes_a_line_and_a_name(text: str) -> None:
    TypeAdapter(Line).validate_python(ascii_line(text))
    TypeAdapter(Name).validate_python(ascii_name(text, "device"))


def rich(**changes: Any) -> Profile:
    fields: dict[str, Any] = {
        "device": "d-0123456789abcdef",
        "name": "n" * 64,
        "soc": "s" * 200,
        "os": "o" * 200,
        "arch": "x86_64",
        "units": tuple(UnitOffer(unit=f"Unit {i} (ONNX)", runtime="r" * 60) for i in range(4)),
        "gpus": tuple(GpuInfo(name="NVIDIA H100 80GB HBM3", vram=2**37, driver="550.54") for _ in range(8)),
        "ram": 2**40,
        "cores": 64,
        "threads": 128,
        "monitors": tuple(Sensor),
    }
    return Profile(**(fields | changes))


def test_an_advert_sheds_what_is_optional_until_it_fits() -> None:
    advert = build_advert(
        rich(),
        PEER,
        addresses=[f"/ip4/192.0.2.{i}/tcp/4001" for i in range(8)],
        labels={"site": "lab"},
        models=["a" * 64] * 4,
        version="0.1.0",
    )
    assert len(advert_body(advert)) <= MAX_ADVERT
    assert advert.labels == {"site": "lab"}
    assert len(advert.units) == 4
    assert advert.gpus
    assert advert.models == ()
    assert advert.monitors is None


def test_an_advert_says_the_formats_of_units_that_nobody_else_knows(tmp_path: Path) -> None:
    found = ProbedUnits(
        (
            UnitInfo("CPU (ONNX)", "onnx", "r", formats=("onnx",)),
            UnitInfo("CPU (Mine)", "mine", "r", formats=("mine", "onnx")),
            UnitInfo("CPU (Open)", "open", "r"),
        ),
        (),
    )
    offers = build_advert(probe_device(tmp_path, lambda: found), PEER).units
    assert [(one.unit, one.formats) for one in offers] == [
        ("CPU (ONNX)", None),
        ("CPU (Mine)", ("mine", "onnx")),
        ("CPU (Open)", None),
    ]
    assert "formats" not in offers[0].to_wire(), "the bytes of adverts of before"


def test_a_small_advert_keeps_everything() -> None:
    small = rich(soc="Apple M2", os="macOS 15", name="mac", gpus=(), units=rich().units[:1])
    advert = build_advert(small, PEER, addresses=["/ip4/192.0.2.1/tcp/4001"], models=["a" * 64] * 4)
    assert len(advert.models) == 4
    assert advert.monitors == tuple(map(str, Sensor))
    assert build_advert(rich(monitors=()), PEER).monitors is None, "it shows nothing"
    assert advert.features == FEATURES
    assert build_advert(replace(small, simulated=True), PEER).features == (FORGET,), "a script takes no turns"
    assert advert.soc == "Apple M2"


def test_labels_that_do_not_fit_are_an_error_and_never_dropped() -> None:
    with pytest.raises(LocalProtocolError, match="does not fit") as error:
        build_advert(rich(), PEER, labels={f"label-{i:02d}": "v" * 64 for i in range(16)})
    assert "labels" in error.value.hint


def test_a_run_gets_a_share_of_the_memory() -> None:
    assert memory_cap(rich(), 0.5) == 2**39
    assert memory_cap(rich(ram=None), 0.5) > 0


def test_a_device_is_well_while_each_of_its_units_still_works() -> None:
    cpu, gpu = UnitInfo("CPU (ONNX)", "onnx", "1"), UnitInfo("GPU (ONNX)", "onnx", "1")
    profile = Profile(
        device="d-1", name="lab", units=tuple(UnitOffer(unit=one.unit, runtime="1") for one in (cpu, gpu))
    )
    assert trouble_with(profile, lambda: ProbedUnits((cpu, gpu), ())) == ""
    trouble = trouble_with(profile, lambda: ProbedUnits((cpu,), ("driver 'onnx': killed by SIGSEGV",)))
    assert "GPU (ONNX) no longer works" in trouble
    assert "SIGSEGV" in trouble


@pytest.mark.parametrize(
    ("files", "ram"),
    [
        ({"sys/fs/cgroup/memory.max": "1073741824\n"}, 1 << 30),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "536870912\n"}, 1 << 29),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, None),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "268435456\n"}, 1 << 28),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ({"proc/self/cgroup": "0::/../../etc\n"}, None),
        ({}, None),
    ],
)
def test_memory_is_the_machines_or_the_containers_if_that_is_less(
    tmp_path: Path, files: dict[str, str], ram: int | None
) -> None:
    for where, text in files.items():
        (tmp_path / where).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / where).write_text(text)
    assert read_ram(tmp_path) == (ram or int(psutil.virtual_memory().total))
