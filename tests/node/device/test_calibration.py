"""A calibration holds only what was measured, and says how certain it is. Rounds add up, and busy rounds never spoil quiet ones."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.base import (
    Cancelled,
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
from drivers.micro.micro import Killing
from node.device.calibrate import CalibrationTools, RoundStop, gpu_kind, learn, make_round, wait_until_quiet
from node.device.calibration import (
    FLOOR_UNKNOWN,
    KEPT,
    MOST_FLOOR,
    REMEASURED_LATER_NOTE,
    CalibratedFigure,
    Calibration,
    MicroFigures,
    curves,
    figure_of_round,
    figure_text,
    headline,
    joined,
    joined_figure,
    spread_of,
    warm_after,
)
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
        {"gpus": read_gpus(H100.gpus)},
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
    """Launches that are slow for their first inferences, with medians that differ between launches."""

    def __init__(
        self, order: WorkOrder, cold: int, fails: bool = False, medians: Sequence[int] = (100,) * 6
    ) -> None:
        self._order, self._cold, self._fails, self._medians = order, cold, fails, medians
        self.kill = lambda: None

    def events(self) -> Iterator[Event]:
        if self._fails:
            raise Crashed("killed by SIGSEGV")
        assert Path(self._order.model).stat().st_size > 0
        yield LoadReport(1, None, None)
        if self._order.precision is not None:
            for median in self._medians:
                yield MeasureReport((median,) * 9, (median,), 0.1, 0.1, None, 1, None)
            return
        times = [500] * self._cold + [100] * self._order.runs
        yield MeasureReport(tuple(times[1 : self._order.runs + 1]), (times[0],), 0.1, 0.1, None, 1, None)


SAMPLES = {"tiny.onnx": b"1", "chain.onnx": b"22"}


def test_the_floor_is_the_most_that_a_small_and_a_larger_model_need() -> None:
    colds = iter((3, 8, 0))
    floor, _ = learn(CPU, SAMPLES, lambda order, limits: Launch(order, next(colds)), RoundStop())
    assert floor == 8


def test_how_far_launches_differ_is_learned_from_the_larger_model_warmed_up_as_it_needs() -> None:
    orders: list[WorkOrder] = []

    def launch(order: WorkOrder, limits: Limits) -> Launch:
        orders.append(order)
        return Launch(order, 4, medians=(97, 100, 103, 100))

    _, spread = learn(CPU, SAMPLES, launch, RoundStop())
    assert spread == pytest.approx(0.0245, abs=0.0005)
    assert [Path(order.model).name for order in orders] == ["tiny.onnx", "chain.onnx", "chain.onnx"]
    assert (orders[-1].warmup, orders[-1].warmup_floor) == (None, 4)


@pytest.mark.parametrize(
    ("launches", "spread"), [((100, 100, 100), None), ((100,) * 4, 0.0), ((0, 1, 1, 1), None)]
)
def test_too_few_launches_or_a_clock_that_is_too_coarse_tell_no_spread(
    launches: tuple[int, ...], spread: float | None
) -> None:
    assert spread_of(launches) == spread


# -- complete calibrations -----------------------------------------------------------------------------------------------


def found_by(kind: str, plan: micro.MicroPlan, threads: int, *, killing: object = None) -> micro.MicroResult:
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
    """A sampler without a process."""

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
        samples=lambda driver: SAMPLES,
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


def calibrate(
    profile: Profile, tools: CalibrationTools, most_s: float = 3.0, full: bool = False
) -> Calibration:
    """One round, after the idle wait."""
    stop = RoundStop()
    return make_round(profile, tools, wait_until_quiet(tools, most_s, stop), stop, full=full)


def test_a_calibration_has_what_was_measured_and_none_for_what_is_unknown(tmp_path: Path) -> None:
    calibration = calibrate(device(), tools(tmp_path))
    assert (calibration.floor(CPU), calibration.floor(GPU)) == (6, FLOOR_UNKNOWN)
    assert (calibration.first_look(CPU, 0.02), calibration.first_look(GPU, 0.02)) == (6, 6)
    assert calibration.quiet is None, "nothing tells"
    (one,) = calibration.micro
    assert (one.device, one.threads, one.figures["memory_gb_s"].value) == ("EPYC", 2, 20.5)
    assert (calibration.host.others_share, calibration.host.clock_mhz, one.clock_mhz) == (None, None, None)
    assert calibration.fingerprint == device().fingerprint
    assert calibration.timer_ns > 0
    assert headline(calibration) == (
        "EPYC: 90 GFLOPS fp32, memory 20.5 GB/s in one round; warm after 6 (CPU (ONNX)); ±2 % after 6 launches (CPU (ONNX))"
    )


def test_a_gpu_is_read_while_its_micro_benchmarks_run(tmp_path: Path) -> None:
    _, one = calibrate(device(), tools(tmp_path, kind="cuda")).micro
    assert (one.device, one.clock_mhz, one.power_w, one.throttled) == ("NVIDIA H100", 1755, 600, ("power",))


def test_what_does_not_work_is_left_out_with_a_note_and_the_rest_stays(tmp_path: Path) -> None:
    def launch(order: WorkOrder, limits: Limits) -> Launch:
        return Launch(order, 6, fails=order.unit == GPU)

    def run(kind: str, plan: micro.MicroPlan, threads: int, *, killing: object) -> micro.MicroResult:
        raise Unfit("torch sees no GPU here")

    both = device(
        units=(UnitOffer(unit=CPU, runtime="1"), UnitOffer(unit=GPU, runtime="1")),
        drivers={CPU: "onnx", GPU: "onnx"},
    )
    calibration = calibrate(both, replace(tools(tmp_path, launch), run_micro=run))
    assert list(calibration.floors) == list(calibration.spreads) == [CPU]
    assert calibration.micro == ()
    assert any("SIGSEGV" in note and GPU in note for note in calibration.notes)
    assert any("no GPU here" in note for note in calibration.notes)


@pytest.mark.parametrize("part", ["samples", "launch", "run_micro"])
def test_a_full_disk_leaves_out_what_needs_it(tmp_path: Path, part: str) -> None:
    def full(*_: object, **__: object) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    calibration = calibrate(device(), replace(tools(tmp_path), **{part: full}))
    assert (calibration.floors == {}, calibration.micro == ()) == (part != "run_micro", part == "run_micro")
    assert any("No space left on device" in note for note in calibration.notes)


def test_every_driver_gives_its_own_samples_once_and_one_without_is_named(tmp_path: Path) -> None:
    asked: list[str] = []

    def samples(driver: str) -> dict[str, bytes]:
        asked.append(driver)
        if driver == "coreml":
            raise Crashed("exit code 1: no coremltools")
        return {} if driver == "api" else {"m": driver.encode()}

    def launch(order: WorkOrder, limits: Limits) -> Launch:
        assert Path(order.model).read_text() == ("torch" if "Torch" in order.unit else "onnx")
        return Launch(order, 6)

    drivers = {
        CPU: "onnx",
        GPU: "onnx",
        "CPU (Torch)": "torch",
        "API (x)": "api",
        "GPU (CoreML)": "coreml",
    }
    units = tuple(UnitOffer(unit=unit, runtime="1") for unit in drivers)
    made = calibrate(device(units=units, drivers=drivers), replace(tools(tmp_path, launch), samples=samples))
    assert asked == ["onnx", "torch", "api", "coreml"]
    assert list(made.floors) == [CPU, GPU, "CPU (Torch)"]
    assert made.notes == (
        "warm-up of API (x) was not learned: the driver api has no sample models",
        "warm-up of GPU (CoreML) was not learned: exit code 1: no coremltools",
    )


class Loaded:
    """A host with two processors, of which other processes use a share. Time passes only in waits."""

    def __init__(self, root: Path, share: float = 0.0) -> None:
        self.root, self.share, self.now, self._busy = root, share, 0.0, 0.0
        (root / "proc").mkdir()
        self.reader = host.HostReader(root, clock=lambda: self.now)
        self.wait(0.1)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self._busy += seconds * self.share * 100
        busy, idle = int(self._busy), int(self.now * 100 - self._busy)
        cpus = "".join(f"cpu{n} {busy} 0 0 {idle} 0 0 0 0\n" for n in range(2))
        running = 3 if self.share else 1
        text = f"cpu  {2 * busy} 0 0 {2 * idle} 0 0 0 0 0 0\n{cpus}procs_running {running}\n"
        (self.root / "proc/stat").write_text(text)

    def tools(self, folder: Path) -> CalibrationTools:
        return replace(
            tools(folder),
            reader=self.reader,
            idle_wait=lambda most_s: IdleWait(
                most_s, reader=self.reader, own_cpu_s=lambda: 0.0, clock=lambda: self.now
            ),
            wait=self.wait,
        )


def test_a_busy_host_is_waited_for_and_then_the_figures_say_that_they_are_of_one(tmp_path: Path) -> None:
    busy = Loaded(tmp_path, share=1.0)
    calibration = calibrate(device(), busy.tools(tmp_path))
    assert calibration.host.others_share == pytest.approx(1)
    assert (calibration.quiet, calibration.floors[CPU].quiet) == (False, False)
    assert headline(calibration).endswith(REMEASURED_LATER_NOTE)
    assert 3 <= busy.now < 6


def test_a_quiet_host_makes_a_quiet_round_unless_it_is_busy_at_its_end(tmp_path: Path) -> None:
    still = Loaded(tmp_path)
    assert calibrate(device(), still.tools(tmp_path)).quiet is True

    def run(kind: str, plan: micro.MicroPlan, threads: int, *, killing: object) -> micro.MicroResult:
        still.share = 0.5
        return found_by(kind, plan, threads)

    spoilt = calibrate(device(), replace(still.tools(tmp_path), run_micro=run))
    assert (spoilt.host.quiet, spoilt.quiet) == (True, False)


def test_a_round_that_is_stopped_kills_what_runs_and_makes_nothing_more(tmp_path: Path) -> None:
    stop, killed = RoundStop(), list[str]()

    class Stopped(Launch):
        def events(self) -> Iterator[Event]:
            self.kill = lambda: killed.append("launch")
            yield from ()
            stop.now()
            raise Crashed("killed by SIGKILL")

    def launch(order: WorkOrder, limits: Limits) -> Launch:
        made = Stopped(order, 0)
        made.kill = lambda: killed.append("launch")
        return made

    with pytest.raises(Cancelled):
        make_round(device(), tools(tmp_path, launch), None, stop)
    assert killed == ["launch"]
    with pytest.raises(Cancelled):
        wait_until_quiet(tools(tmp_path), 3.0, stop)

    stop = RoundStop()

    def run(kind: str, plan: micro.MicroPlan, threads: int, *, killing: Killing) -> micro.MicroResult:
        with killing(lambda: killed.append("micro")):
            stop.now()
        raise Crashed("exit code -9")

    with pytest.raises(Cancelled):
        make_round(device(), replace(tools(tmp_path), run_micro=run), None, stop)
    assert killed == ["launch", "micro"]


# -- rounds --------------------------------------------------------------------------------------------------------------


def of(*values: float, quiet: bool | None = True) -> CalibratedFigure:
    """A figure measured in these rounds."""
    made: CalibratedFigure | None = None
    for at, value in enumerate(values):
        made = joined_figure(made, figure_of_round(value, quiet, float(at)), max)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("old", "new", "value", "runs", "quiet"),
    [
        (of(100.0), of(104.0), 104, 2, True),
        (of(104.0), of(100.0), 104, 2, True),
        (of(100.0), of(300.0, quiet=False), 100, 1, True),
        (of(300.0, 200.0, quiet=False), of(100.0), 100, 1, True),
        (of(50.0, quiet=False), of(60.0, quiet=False), 60, 2, False),
        (of(50.0, quiet=None), of(60.0, quiet=None), 60, 2, None),
        (of(50.0, quiet=None), of(60.0, quiet=False), 50, 1, None),
    ],
)
def test_a_quiet_round_replaces_busy_ones_and_a_busy_one_changes_nothing_that_is_quiet(
    old: CalibratedFigure, new: CalibratedFigure, value: float, runs: int, quiet: bool | None
) -> None:
    made = joined_figure(old, new, max)
    assert made is not None
    assert (made.value, made.runs, made.quiet) == (value, runs, quiet)


def test_the_spread_is_half_of_the_range_of_the_newest_rounds() -> None:
    assert of(100.0).spread is None
    assert of(96.0, 100.0).spread == pytest.approx(0.02)
    many = of(1000.0, *[100.0] * KEPT)
    assert (many.value, many.spread, many.runs, many.at) == (100, 0, KEPT + 1, KEPT)


def calibrated(gflops: float, floor: int, at: float = 1.0, **changes: object) -> Calibration:
    quiet = changes.get("quiet", True)
    assert quiet is None or isinstance(quiet, bool)
    micro = MicroFigures(
        device="EPYC",
        backend="numpy 2",
        threads=2,
        seconds=1.0,
        figures={
            "fp32_gflops_max": figure_of_round(gflops, quiet, at),
            "memory_gb_s": figure_of_round(20.0, quiet, at),
        },
    )
    made = Calibration(
        fingerprint="0" * 64,
        at=at,
        timer_ns=40,
        floors={CPU: figure_of_round(floor, quiet, at)},
        spreads={CPU: figure_of_round(0.02, quiet, at)},
        micro=(micro,),
    )
    return made.model_copy(update=changes)


def test_rounds_join_to_the_best_speed_and_the_median_floor_and_say_how_many_they_are() -> None:
    made = joined(joined(calibrated(96, 7), calibrated(100, 30, 2.0)), calibrated(98, 8, 3.0))
    assert (made.rounds, made.at, made.floor(CPU)) == (3, 3.0, 8)
    assert headline(made) == (
        "EPYC: 100 GFLOPS ±2 % fp32, memory 20 GB/s ±0.1 % in 3 quiet rounds; warm after 8 (CPU (ONNX)); "
        "±2 % after 10 launches (CPU (ONNX))"
    )


def test_a_busy_round_after_quiet_ones_only_adds_what_they_lack() -> None:
    busy = calibrated(50, 3, 9.0, quiet=False, spreads={GPU: figure_of_round(0.1, False, 9.0)})
    made = joined(calibrated(100, 7), busy)
    assert (made.rounds, made.at, made.quiet, made.floor(CPU)) == (1, 1.0, True, 7)
    assert (made.micro[0].figures["fp32_gflops_max"].value, list(made.spreads)) == (100, [CPU, GPU])
    back = joined(calibrated(50, 3, 9.0, quiet=False), calibrated(100, 7))
    assert (back.rounds, back.quiet, back.floor(CPU)) == (1, True, 7)


def test_curves_of_a_full_round_take_the_place_of_shorter_ones_and_what_failed_keeps_its_figures() -> None:
    made = joined(calibrated(100, 7), calibrated(90, 7, full=True))
    assert (made.full, made.micro[0].figures["fp32_gflops_max"].runs) == (True, 1)
    assert joined(made, calibrated(1, 7, full=True, micro=())).micro == made.micro
    busy = joined(calibrated(100, 7), calibrated(60, 3, full=True, quiet=False))
    assert (busy.full, busy.quiet, busy.floor(CPU)) == (True, False, 7), (
        "and what it lacks is measured when it is quiet"
    )
    assert (
        busy.micro[0].figures["fp32_gflops_max"].value,
        headline(busy).endswith(REMEASURED_LATER_NOTE),
    ) == (60, True)
    assert joined(busy, calibrated(90, 8, full=True)).quiet is True
    newer = calibrated(80, 7).micro[0].model_copy(update={"backend": "numpy 3"})
    (one,) = joined(calibrated(100, 7), calibrated(80, 7, micro=(newer,))).micro
    assert (one.backend, one.figures["fp32_gflops_max"].value) == ("numpy 3", 80)
    gpu = newer.model_copy(update={"device": "H100"})
    spoilt = joined(calibrated(100, 7), calibrated(80, 7, micro=(newer, gpu), quiet=False)).micro
    assert [(each.device, each.backend) for each in spoilt] == [("H100", "numpy 3"), ("EPYC", "numpy 2")]


def test_a_device_whose_launches_differ_too_much_says_so() -> None:
    text = headline(calibrated(100, 7, spreads={CPU: figure_of_round(0.2, True, 1.0)}))
    assert text.endswith("±2 % after more than 20 launches (CPU (ONNX))")
    assert [figure_text(of(96.0, 100.0)), figure_text(of(99.9, 100.0))] == ["100 ±2 %", "100 ±0.1 %"]


def test_torch_measures_a_gpu_only_where_there_is_one_that_it_could_see() -> None:
    assert gpu_kind(device(gpu_report=H100), "linux", lambda: True) == "cuda"
    assert gpu_kind(device(gpu_report=H100), "linux", lambda: False) == ""
    assert gpu_kind(device(), "linux", lambda: True) == ""
    apple = device(units=(UnitOffer(unit="GPU (Torch)", runtime="torch 2"),))
    assert gpu_kind(apple, "darwin", lambda: True) == "mps"


def test_figures_are_shown_by_curve() -> None:
    found = {name: of(value) for name, value in found_by("cpu", micro.QUICK, 1).figures.items()}
    one = MicroFigures(device="d", backend="b", threads=1, seconds=1.0, figures=found)
    assert curves(one) == [
        ("fp32_gflops", {"1024": of(90.0), "max": of(90.0)}),
        ("copy_gb_s", {"1_mib": of(60.0)}),
    ]
