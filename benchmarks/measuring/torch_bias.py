"""Are the Torch driver's medians right, and does a GPU's figure come from the GPU? Needs torch; on a GPU: one command, about a minute.

    python benchmarks/measuring/torch_bias.py [--unit "GPU (Torch)"] [--rounds 5]

For each model the driver's launch and a plain torch program in a process of its own (torch_reference.py) take turns. Printed: the median of
each, the median of the paired ratios, and what NVML saw meanwhile. The program's events measure the device's own time; its wall time
includes the call and the wait, as ours does. Then follow cases that must never pass on a GPU: a GPU that the owner's environment hides; a
program that computes on the CPU and returns tensors of the GPU; one that needs more memory than there is.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch

from drivers.contract.base import (
    DriverError,
    Event,
    Limits,
    MeasureReport,
    ModelDescription,
    Telemetry,
    WorkOrder,
)
from drivers.launch.launch import Zygote, measure
from drivers.measure.gpu import find_gpus

REFERENCE = Path(__file__).with_name("torch_reference.py")
CPU = "CPU (Torch)"
LIMITS = Limits(load_s=180, run_s=300)
SIZES = {"small": (256, 1, 4, 2000), "medium": (1024, 32, 8, 400), "large": (4096, 256, 8, 60)}
"""Model: width, batch, layers, inferences."""


class Layers(torch.nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            *(layer for _ in range(depth) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU()))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Falls(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.to("cpu")
        return torch.relu(y @ y.t()).to(x.device)


class Greedy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum() + torch.ones(1048576, 1048576, device=x.device).sum()


def saved(module: torch.nn.Module, path: Path) -> str:
    """Save as TorchScript, readable by others: root's node runs models as nobody."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(module.eval()), str(path))
    path.chmod(0o644)
    return str(path)


def ours(
    zygote: Zygote, model: str, unit: str, batch: int, width: int, runs: int, threads: int
) -> list[Event]:
    inputs = {"x": f"float32[{batch}, {width}]"}
    order = WorkOrder(model, unit, runs=runs, loads=1, threads=threads, inputs=inputs)
    return list(measure(order, LIMITS, zygote))


def median_us(events: list[Event]) -> float:
    (measured,) = (event for event in events if isinstance(event, MeasureReport))
    return statistics.median(measured.samples_ns) / 1e3


def reference(model: str, device: str, *numbers: int) -> dict[str, float]:
    """Medians of the independent program in microseconds."""
    command = [sys.executable, "-W", "ignore", str(REFERENCE), model, device, *map(str, numbers)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {name: value / 1e3 for name, value in json.loads(done.stdout).items() if value is not None}


def compare(zygote: Zygote, folder: Path, unit: str, rounds: int, threads: int) -> None:
    """Print a line for each model, and what was observed of the device."""
    device = "cpu" if unit == CPU else "cuda:0"
    print(
        f"{'model':8} {'ours µs':>10} {'wall µs':>10} {'events µs':>10} {'ours/wall':>10}   ({rounds} rounds)"
    )
    for name, (width, batch, depth, runs) in SIZES.items():
        if name == "large" and unit == CPU:
            continue  # minutes
        model = saved(Layers(width, depth), folder / f"{name}.pt")
        sides: list[tuple[float, dict[str, float]]] = []
        events: list[Event] = []
        for turn in range(rounds):
            plain = reference(model, device, batch, width, runs, threads) if turn % 2 else {}
            events = ours(zygote, model, unit, batch, width, runs, threads)
            plain = plain or reference(model, device, batch, width, runs, threads)
            sides.append((median_us(events), plain))
        ratio = statistics.median(mine / plain["wall"] for mine, plain in sides)
        mine = statistics.median(mine for mine, _ in sides)
        wall = statistics.median(plain["wall"] for _, plain in sides)
        by_events = [plain["events"] for _, plain in sides if "events" in plain]
        shown = f"{statistics.median(by_events):10.1f}" if by_events else f"{'-':>10}"
        print(f"{name:8} {mine:10.1f} {wall:10.1f} {shown} {ratio:10.3f}")
        for event in events:
            if isinstance(event, ModelDescription):
                print(f"         {event.unit}, {event.providers}, {event.runtime}; {'; '.join(event.notes)}")
            if isinstance(event, Telemetry):
                print(f"         {event}")


def promises(folder: Path, unit: str) -> bool:
    """Try the cases that must not pass, and print their outcomes; return whether all were refused."""
    held = True
    greedy, falls = saved(Greedy(), folder / "greedy.pt"), saved(Falls(), folder / "falls.pt")
    for what, model, hidden in (
        ("all GPUs hidden", falls, True),
        ("computes on the CPU", falls, False),
        ("needs 4 TiB", greedy, False),
    ):
        before = os.environ.get("CUDA_VISIBLE_DEVICES")
        if hidden:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        try:
            with Zygote("torch") as zygote:
                events = ours(zygote, model, unit, 64, 64, 8, 1)
            (described,) = (event for event in events if isinstance(event, ModelDescription))
            refused, became = described.unit != unit, f"ran on {described.unit} {described.providers}"
        except DriverError as why:
            refused, became = True, f"{type(why).__name__}: {why}"
        finally:
            if hidden:
                os.environ.pop("CUDA_VISIBLE_DEVICES")
                if before is not None:
                    os.environ["CUDA_VISIBLE_DEVICES"] = before
        print(f"{'refused' if refused else 'PASSED':8} {what}: {became[:300]}")
        held = held and refused
    return held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--unit", default="GPU (Torch)" if torch.cuda.is_available() else CPU)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    print(f"torch {torch.__version__}, {chosen.unit}, {find_gpus()}")
    with tempfile.TemporaryDirectory() as made:
        with Zygote("torch").start() as zygote:
            compare(zygote, Path(made), chosen.unit, chosen.rounds, chosen.threads)
        if chosen.unit != CPU and not promises(Path(made), chosen.unit):
            sys.exit(1)


if __name__ == "__main__":
    main()
