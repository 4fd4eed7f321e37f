"""A calibration is stored by fingerprint, made again when that changes, and holds nothing that was not measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from drivers.contract.base import (
    Crashed,
    Event,
    Limits,
    LoadReport,
    MeasureReport,
    Telemetry,
    Unfit,
    WorkOrder,
)
from drivers.measure import host
from drivers.measure.gpu import Gpu, GpuReport
from drivers.measure.idle_wait import IdleWait
from drivers.measure.telemetry import Sampler
from drivers.micro import plan as micro
from node.device.calibrate import CalibrationTools, calibrate, ensure_calibrated, gpu_kind, learn_floor
from node.device.calibration import (
    FILE,
    FLOOR_UNKNOWN,
    MOST_FLOOR,
    Calibration,
    MicroFigures,
    curves,
    headline,
    read_calibration,
    warm_after,
    write_calibration,
)
from node.device.lock import DeviceLock
from node.device.probe import Profile, device_facts, read_gpus
from protocol.values.advert import UnitOffer

CPU = "CPU (ONNX)"
GPU = "GPU (ONNX)"


def device(**changes: object) -> Profile:
    profile = Profile(
        device="d-1",
        name="lab",
        soc="EPYC",
        os="Linux",
        arch="x86_64",
        cores=2,
        threads=2,
        ram=8 << 30,
        units=(UnitOffer(unit=CPU, runtime="onnxruntime 1.31"),),
        drivers={CPU: "onnx"},
    )
    return replace(profile, **changes)  # type: ignore[arg-type]


H100 = GpuReport((Gpu("NVIDIA H100", 80 << 30, "550"),), "nvml")


@pytest.mark.parametrize(
    "change",
    [
        {"soc": "Xeon"},
        {"ram": 16 << 30},
        {"cores": 4},
        {"os": "Linux 2"},
        {"units": (UnitOffer(unit=CPU, runtime="onnxruntime 1.32"),)},
        {"gpus": read_gpus(H100)},
    ],
)
def test_the_fingerprint_changes_with_hardware_system_and_runtimes(change: dict[str, object]) -> None:
    assert device(**change).fingerprint != device().fingerprint


def test_the_fingerprint_is_not_of_one_machine_alone_and_stands_in_its_records() -> None:
    assert device(device="d-2", name="other", ram=(8 << 30) - 9_000_000).fingerprint == device().fingerprint
    assert len(device().fingerprint) == 64
    assert device_facts(device(), "0.1").fingerprint == device().fingerprint


# -- warm-up -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "floor"),
    [
        ([900] + [100] * 59, 2),
        ([900, 500, 400, 300, 200, 150, 130] + [100] * 53, 7),
        ([900] + [100] * 30 + [400] + [100] * 28, 2),
        ([200] * 25 + [100] * 75, 25),
        ([200] * 80 + [100] * 120, MOST_FLOOR),
        ([100] * 8, FLOOR_UNKNOWN),
    ],
)
def test_a_device_is_warm_after_as_many_inferences_as_took_longer_than_the_later_ones(
    samples: list[int], floor: int
) -> None:
    assert warm_after(samples) == floor


def test_where_a_sample_is_the_mean_of_several_inferences_all_of_them_count() -> None:
    samples = [900, 400, 200] + [100] * 57
    assert (warm_after(samples), warm_after(samples, each=10)) == (3, 30)


class Launch:
    """A launch of a device that is slow for its first inferences."""

    def __init__(self, order: WorkOrder, cold: int, fails: bool = False) -> None:
        self._order, self._cold, self._fails = order, cold, fails

    def events(self) -> Iterator[Event]:
        if self._fails:
            raise Crashed("killed by SIGSEGV")
        assert Path(self._order.model).stat().st_size > 10
        times = [500] * self._cold + [100] * self._order.runs
        yield LoadReport(1, None, None)
        yield MeasureReport(tuple(times[1 : self._order.runs + 1]), (times[0],), 0.1, 0.1, None, 1, None)


def test_the_floor_is_the_most_that_a_small_and_a_larger_model_need() -> None:
    colds = iter((3, 8))
    assert learn_floor(CPU, lambda order, limits: Launch(order, next(colds))) == 8


# -- the whole -----------------------------------------------------------------------------------------------------------


def found_by(kind: str, plan: micro.MicroPlan, threads: int) -> micro.MicroResult:
    figures = {
        "fp32_gflops_1024": 90.0,
        "fp32_gflops_max": 90.0,
        "memory_gb_s": 20.5,
        "copy_gb_s_1_mib": 60.0,
    }
    if kind == "cuda":
        figures = {"bf16_gflops_4096": 700_000.0, "bf16_gflops_max": 700_000.0}
    return micro.MicroResult(
        "NVIDIA H100" if kind == "cuda" else "cpu", "double", threads, figures, windows=((1, 2),), seconds=1.0
    )


class Meter(Sampler):
    """Readings without a process."""

    def start(self) -> bool:
        return True

    def stop(self, windows: object, pids: object = ()) -> Telemetry | None:
        assert windows == ((1, 2),)
        return Telemetry("nvml", "NVIDIA H100", 9, power_w=600.0, clock_mhz=1755.0, throttled=("power",))


def tools(
    tmp_path: Path, launch: Callable[[WorkOrder, Limits], Launch] | None = None, kind: str = ""
) -> CalibrationTools:
    return CalibrationTools(
        launch=launch or (lambda order, limits: Launch(order, 6)),
        run_micro=found_by,
        sampler=Meter,
        reader=host.HostReader(tmp_path / "no-such-system"),
        idle_wait=lambda most_s: IdleWait(most_s, reader=host.HostReader(tmp_path / "no-such-system")),
        own_cpu_s=lambda: 0.0,
        wait=lambda seconds: None,
        wall=lambda: 1000.0,
        threads=lambda: 2,
        gpu_kind=lambda profile: kind,
    )


def test_a_calibration_has_what_was_measured_and_none_for_what_is_unknown(tmp_path: Path) -> None:
    calibration = calibrate(device(), tools(tmp_path))
    assert calibration.floors == {CPU: 6}
    assert (calibration.floor(CPU), calibration.floor("GPU (Torch)")) == (6, FLOOR_UNKNOWN)
    (one,) = calibration.micro
    assert (one.device, one.threads, one.figures["memory_gb_s"]) == ("EPYC", 2, 20.5)
    assert (calibration.host.others_share, calibration.host.clock_mhz, one.clock_mhz) == (None, None, None)
    assert calibration.fingerprint == device().fingerprint
    assert calibration.timer_ns > 0
    assert headline(calibration) == "EPYC: 90 GFLOPS fp32, memory 20.5 GB/s; warm after 6 (CPU (ONNX))"


def test_a_gpu_is_read_while_its_micro_benchmarks_run(tmp_path: Path) -> None:
    _, one = calibrate(device(), tools(tmp_path, kind="cuda")).micro
    assert (one.device, one.clock_mhz, one.power_w, one.throttled) == ("NVIDIA H100", 1755, 600, ("power",))


def test_what_does_not_work_is_left_out_with_a_note_and_the_rest_stays(tmp_path: Path) -> None:
    def launch(order: WorkOrder, limits: Limits) -> Launch:
        return Launch(order, 6, fails=order.unit == GPU)

    def run(kind: str, plan: micro.MicroPlan, threads: int) -> micro.MicroResult:
        raise Unfit("torch sees no GPU here")

    both = device(
        units=(UnitOffer(unit=CPU, runtime="1"), UnitOffer(unit=GPU, runtime="1")),
        drivers={CPU: "onnx", GPU: "onnx"},
    )
    calibration = calibrate(both, replace(tools(tmp_path, launch), run_micro=run))
    assert calibration.floors == {CPU: 6}
    assert calibration.micro == ()
    assert any("SIGSEGV" in note and GPU in note for note in calibration.notes)
    assert any("no GPU here" in note for note in calibration.notes)


def test_a_busy_host_is_waited_for_and_then_a_note_says_that_the_figures_are_low(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    now, waits = [0.0], list[float]()

    def wait(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds
        busy = int(now[0] * 100)
        cpus = "".join(f"cpu{n} {busy} 0 0 0 0 0 0 0\n" for n in range(2))
        text = f"cpu  {2 * busy} 0 0 0 0 0 0 0 0 0\n{cpus}procs_running 3\n"
        (tmp_path / "proc/stat").write_text(text)

    wait(0.1)
    reader = host.HostReader(tmp_path, clock=lambda: now[0])
    busy = replace(
        tools(tmp_path),
        reader=reader,
        idle_wait=lambda most_s: IdleWait(most_s, reader=reader, own_cpu_s=lambda: 0.0, clock=lambda: now[0]),
        wait=wait,
    )
    calibration = calibrate(device(), busy)
    assert calibration.host.others_share == pytest.approx(1)
    assert any("the host was busy (other processes used 100%)" in note for note in calibration.notes)
    assert 3 <= sum(waits) < 5
    assert calibrate(device(), tools(tmp_path)).notes == ()


async def test_a_device_is_calibrated_once_and_again_when_forced_or_changed(tmp_path: Path) -> None:
    lines: list[str] = []
    lock = DeviceLock("d", tmp_path)

    async def go(profile: Profile, *, full: bool = False, force: bool = False) -> Calibration:
        lines.clear()
        return await ensure_calibrated(
            tmp_path, profile, tools(tmp_path), lock, lines.append, full=full, force=force
        )

    first = await go(device())
    assert "not calibrated yet" in lines[0]
    assert lines[-1].startswith("calibrated: EPYC: 90 GFLOPS")
    assert await go(device()) == first
    assert lines == []
    await go(device(), force=True)
    assert lines
    assert (await go(device(), full=True)).full
    await go(device(soc="Xeon"))
    assert "changed since" in lines[0]
    (tmp_path / FILE).write_text('{"v": 1, "fingerprint"')
    await go(device())
    assert "is damaged" in lines[0]
    assert read_calibration(tmp_path, device().fingerprint).calibration is not None


async def test_it_waits_while_something_is_measured_on_the_device(tmp_path: Path) -> None:
    lock, lines = DeviceLock("d", tmp_path), list[str]()
    waited = trio.Event()

    def report(line: str) -> None:
        lines.append(line)
        if line.startswith("waiting"):
            waited.set()

    async with trio.open_nursery() as nursery, DeviceLock("d", tmp_path).hold():
        nursery.start_soon(ensure_calibrated, tmp_path, device(), tools(tmp_path), lock, report)
        await waited.wait()
        assert not (tmp_path / FILE).exists()
    assert (tmp_path / FILE).exists()


def test_a_file_of_another_version_or_full_of_nonsense_is_no_calibration(tmp_path: Path) -> None:
    fingerprint = device().fingerprint
    assert read_calibration(tmp_path, fingerprint).missing == "this device is not calibrated yet"
    for text in (b"", b"[]", b"\xff\x00", b'{"v": 2}'):
        (tmp_path / FILE).write_bytes(text)
        assert "damaged" in read_calibration(tmp_path, fingerprint).missing
    write_calibration(tmp_path, Calibration(fingerprint=fingerprint, at=1.0, timer_ns=40))
    assert read_calibration(tmp_path, fingerprint).calibration == Calibration(
        fingerprint=fingerprint, at=1.0, timer_ns=40
    )


def test_torch_measures_a_gpu_only_where_there_is_one_that_it_could_see() -> None:
    assert gpu_kind(device(gpu_report=H100), "linux", lambda: True) == "cuda"
    assert gpu_kind(device(gpu_report=H100), "linux", lambda: False) == ""
    assert gpu_kind(device(), "linux", lambda: True) == ""
    apple = device(units=(UnitOffer(unit="GPU (Torch)", runtime="torch 2"),))
    assert gpu_kind(apple, "darwin", lambda: True) == "mps"


def test_figures_are_shown_by_curve() -> None:
    one = MicroFigures(
        device="d", backend="b", threads=1, seconds=1.0, figures=dict(found_by("cpu", micro.QUICK, 1).figures)
    )
    assert curves(one) == [("fp32_gflops", {"1024": 90.0, "max": 90.0}), ("copy_gb_s", {"1_mib": 60.0})]
