"""Conditions that spoil measurements: each sign becomes a line that names the condition and what to do about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from drivers.measure.gpu import Gpu, GpuReport
from drivers.sandbox.enter import Tier
from node.device.calibration import Calibration
from node.device.calibration_file import StoredCalibration
from node.device.probe import Profile, read_gpus
from node.doctor.host import Check, CheckState, HostFacts, checks, clock_synchronised, gather
from protocol.values.advert import UnitOffer

H100 = GpuReport((Gpu("NVIDIA H100"),), "nvml")
UNIT = UnitOffer(unit="CPU (ONNX)", runtime="onnxruntime 1.31")
WELL = HostFacts(
    profile=Profile(device="d", name="lab", units=(UNIT,), sandbox=Tier.FULL),
    calibration=StoredCalibration(Calibration(fingerprint="0" * 64, at=1.0, timer_ns=40)),
    governor="performance",
    others_share=0.01,
    stall_share=0.0,
    temperature_c=45.0,
    on_battery=False,
    free_disk=100 << 30,
    clock_synchronised=True,
    timer_ns=40,
)


def with_profile(**changes: object) -> HostFacts:
    return replace(WELL, profile=replace(WELL.profile, **changes))  # type: ignore[arg-type]


def of(facts: HostFacts, subject: str) -> list[Check]:
    return [check for check in checks(facts) if check.subject == subject]


def test_on_a_device_that_is_well_every_line_is_ok_and_asks_for_nothing() -> None:
    assert {(check.state, check.todo) for check in checks(WELL)} == {(CheckState.OK, "")}


@pytest.mark.parametrize(
    ("facts", "subject", "state", "text"),
    [
        (with_profile(units=()), "units", CheckState.BAD, "none works"),
        (with_profile(notes=("driver 'torch': no torch",)), "unit", CheckState.NOTE, "no torch"),
        (
            with_profile(gpu_report=GpuReport(notes=("NVIDIA driver: mismatch",))),
            "GPU",
            CheckState.BAD,
            "mismatch",
        ),
        (
            with_profile(gpu_report=GpuReport(notes=("CUDA_VISIBLE_DEVICES='' shows none of 2 GPUs",))),
            "GPU",
            CheckState.NOTE,
            "shows none of 2 GPUs",
        ),
        (
            with_profile(gpu_report=H100, gpus=read_gpus(H100.gpus)),
            "GPU",
            CheckState.NOTE,
            "no unit runs on this GPU",
        ),
        (
            with_profile(gpu_report=replace(H100, source="torch")),
            "GPU",
            CheckState.NOTE,
            "NVML does not answer",
        ),
        (
            with_profile(sandbox=Tier.NONE, sandbox_notes=("no userns",)),
            "sandbox",
            CheckState.NOTE,
            "no userns",
        ),
        (
            replace(WELL, calibration=StoredCalibration(missing="not yet")),
            "calibration",
            CheckState.NOTE,
            "not yet",
        ),
        (replace(WELL, governor="powersave"), "governor", CheckState.NOTE, "powersave"),
        (replace(WELL, others_share=0.4), "load", CheckState.NOTE, "other processes 40%"),
        (replace(WELL, stall_share=0.2), "load", CheckState.NOTE, "waiting for a processor 20%"),
        (replace(WELL, temperature_c=93.0), "heat", CheckState.NOTE, "93 °C"),
        (replace(WELL, on_battery=True), "power", CheckState.NOTE, "on battery"),
        (replace(WELL, free_disk=1 << 20), "disk", CheckState.BAD, "1 MiB free"),
        (replace(WELL, clock_synchronised=False), "clock", CheckState.NOTE, "time server"),
        (replace(WELL, free_disk=5 << 30), "disk", CheckState.NOTE, "5 GiB free"),
        (replace(WELL, hidden_meters=2), "energy", CheckState.NOTE, "only root can read it"),
        (replace(WELL, timer_ns=2000), "timer", CheckState.NOTE, "2000 ns"),
    ],
)
def test_a_problem_is_reported_with_what_to_do(
    facts: HostFacts, subject: str, state: CheckState, text: str
) -> None:
    worst = [check for check in of(facts, subject) if check.state is state]
    assert any(text in check.what for check in worst)
    assert subject == "unit" or all(check.todo for check in worst)


def test_where_the_kernel_denies_the_sandbox_the_command_that_helps_is_shown(tmp_path: Path) -> None:
    kernel = tmp_path / "proc/sys"
    for name, value in (
        ("kernel/apparmor_restrict_unprivileged_userns", "1\n"),
        ("kernel/unprivileged_userns_clone", "1\n"),
        ("user/max_user_namespaces", "0\n"),
    ):
        (kernel / name).parent.mkdir(parents=True, exist_ok=True)
        (kernel / name).write_text(value)
    profile = replace(WELL.profile, sandbox=Tier.PARTIAL, sandbox_notes=("no user namespace",))
    facts = gather(profile, tmp_path, tmp_path, root=tmp_path, wait=lambda _: None)
    (check,) = of(facts, "sandbox")
    expected = "kernel.apparmor_restrict_unprivileged_userns=0 user.max_user_namespaces=15000"
    assert f"sudo sysctl -w {expected}\n" in check.todo
    assert "unprivileged_userns_clone" not in check.todo
    (plain,) = of(with_profile(sandbox=Tier.PARTIAL), "sandbox")
    assert "sysctl" not in plain.todo


def test_an_unknown_value_is_reported_and_never_taken_for_good() -> None:
    silent = replace(
        WELL,
        governor=None,
        others_share=None,
        stall_share=None,
        temperature_c=None,
        on_battery=None,
        free_disk=None,
        clock_synchronised=None,
    )
    assert "unknown on this system" in of(silent, "load")[0].what
    assert of(silent, "load")[0].state is CheckState.NOTE
    assert "no sensor" in of(silent, "heat")[0].what
    assert "unknown" in of(silent, "disk")[0].what
    assert "unknown on this system" in of(silent, "clock")[0].what


def test_the_signs_are_read_from_the_system(tmp_path: Path) -> None:
    policy = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq"
    policy.mkdir(parents=True)
    (policy / "scaling_governor").write_text("schedutil\n")
    waits: list[float] = []
    facts = gather(
        WELL.profile, tmp_path / "none.json", tmp_path / "not" / "yet", root=tmp_path, wait=waits.append
    )
    assert facts.governor == "schedutil"
    assert facts.others_share is None
    assert facts.free_disk is not None
    assert facts.timer_ns > 0
    assert facts.calibration.missing == "this device is not calibrated yet in its current state"
    assert len(waits) == 1
    assert clock_synchronised("darwin") is None


def test_meters_of_energy_are_named(tmp_path: Path) -> None:
    zone = tmp_path / "sys/class/powercap/intel-rapl:0"
    zone.mkdir(parents=True)
    (zone / "name").write_text("package-0\n")
    facts = gather(WELL.profile, tmp_path, tmp_path, root=tmp_path, wait=lambda seconds: None)
    assert (facts.meters, facts.hidden_meters) == ((), 1)
    (zone / "energy_uj").write_text("5\n")
    facts = gather(WELL.profile, tmp_path, tmp_path, root=tmp_path, wait=lambda seconds: None)
    assert (facts.meters, facts.hidden_meters) == (("rapl package-0",), 0)
    (line,) = of(facts, "energy")
    assert (line.state, line.what) == (CheckState.OK, "rapl package-0")
