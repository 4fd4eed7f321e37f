"""Are our medians right? A driver's launch compared with a tight C program in a process of its own, interleaved.

    python benchmarks/measuring/inference_bias.py [--rounds 11] [--seconds 300] [--sides 'C program' ours] [--json bias.json]

The reference (reference_loop.c, compiled here) opens onnxruntime's library, loads the model, fills the same inputs and runs it with the
same threads and options; its first fifth is dropped. Beside it run the loops that our driver falls back to: calls by ctypes if there is no
compiler, IO binding if the C interface is not available. The order changes from round to round. For each model: the median of each side
over the rounds, and the median of the paired ratios to the reference (goal: within 3 %). The models are made here or come from installed
packages, so nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from drivers.contract.boot import VARIABLE

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

from models import chain, magika

from drivers.contract.base import Limits, MeasureReport, WorkOrder
from drivers.inputs.synthetic import make
from drivers.launch.launch import Zygote, measure
from drivers.native import library as native
from drivers.native.ort_api import NUMBERS
from drivers.onnx.session import inputs_of, options, runtime
from protocol.formats.shapes import GivenSizes, resolve

SOURCE = Path(__file__).with_name("reference_loop.c")
UNIT = "CPU (ONNX)"


class Reference:
    """The C program on one model."""

    def __init__(self, program: Path, model: str, folder: Path) -> None:
        session = runtime().InferenceSession(model, options(1, True), providers=["CPUExecutionProvider"])
        inputs = inputs_of(session)
        shapes = resolve([one.port for one in inputs], GivenSizes())
        self._inputs = folder / f"{Path(model).stem}.inputs"
        with self._inputs.open("wb") as file:
            for one in inputs:
                values = make(one, shapes[one.name], 0, 100)
                head = [one.name, NUMBERS[one.dtype], values.ndim, *values.shape, values.nbytes]
                file.write(" ".join(map(str, head)).encode() + b"\n" + values.tobytes())
        library = native.library()
        assert library is not None
        self._before = [str(program), str(library), model, str(self._inputs)]
        self._outputs = [result.name for result in session.get_outputs()]

    def __call__(self, runs: int, threads: int) -> float:
        """Median in microseconds, without the first fifth."""
        command = [*self._before, str(runs), str(threads), *self._outputs]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        samples = [int(line) for line in done.stdout.split()]
        return statistics.median(samples[runs // 5 :]) / 1e3


def compiled_reference(folder: Path) -> Path:
    """Compile the C program in `folder`."""
    compiler, program = native.compiler(), folder / "reference_loop"
    assert compiler is not None, "a C compiler is needed for the reference"
    subprocess.run([compiler, "-O2", "-o", str(program), str(SOURCE), "-ldl"], check=True)
    return program


def ours(model: str, zygote: Zygote) -> Callable[[int, int], float]:
    """One of our launches: median in microseconds."""

    def once(runs: int, threads: int) -> float:
        order = WorkOrder(model, UNIT, runs=runs, loads=1, threads=threads, check=False)
        (measured,) = [
            event for event in measure(order, Limits(), zygote) if isinstance(event, MeasureReport)
        ]
        return statistics.median(measured.samples_ns) / 1e3

    return once


def zygote_in(cache: Path, said: str = "") -> Zygote:
    """A zygote whose launches find only the abilities that `said` names, as if the device had no others; empty: its real ones."""
    os.environ[VARIABLE] = str(cache)
    library = native.library()
    if said and library is not None:
        cache.mkdir(mode=0o700)
        proof = cache / f"{native.key(library, native.compiler())}.proved"
        proof.write_text(said, "ascii")
        proof.chmod(0o400)
    return Zygote("onnx").start()


SIDES = ("C program", "ours", "ctypes", "IO binding")


def models_in(folder: Path) -> dict[str, tuple[str, int]]:
    """Path and number of runs of each model, from microseconds to tens of milliseconds."""
    nano = folder / "nano.onnx"
    nano.write_bytes(native.TINY_MODEL)
    return {
        "nano": (str(nano), 20_000),
        "tiny": (str(chain(folder / "tiny.onnx", 128, 1, 6)), 10_000),
        "small": (str(chain(folder / "small.onnx", 512, 16, 8)), 300),
        "magika": (str(magika()), 80),
        "large": (str(chain(folder / "large.onnx", 1024, 32, 8)), 30),
    }


def report(by_key: Mapping[tuple[str, str], Sequence[float]]) -> None:
    """Print the table. `by_key`: microseconds of each round by model and side."""
    rounds = max(map(len, by_key.values()))
    print(f"{'model':8} {'side':12} {'µs':>10} {'ratio':>7} {'quartiles':>17}   ({rounds} rounds, 1 thread)")
    for (name, side), values in by_key.items():
        ratios = [b / a for a, b in zip(by_key[name, SIDES[0]], values, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"{name:8} {side:12} {statistics.median(values):10.2f} {middle:7.3f} {low:8.3f} – {high:.3f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="no round begins later; two are made in any case"
    )
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made, ExitStack() as zygotes:
        folder = Path(made)
        program = compiled_reference(folder)
        models = models_in(folder)
        found = {"ours": "", "ctypes": native.CALLS_ONLY, "IO binding": native.NOTHING}
        by_side = {
            side: zygotes.enter_context(zygote_in(folder / side.split()[-1], said))
            for side, said in found.items()
            if side in asked.sides
        }
        sides: dict[tuple[str, str], Callable[[int, int], float]] = {}
        for name, (path, _) in models.items():
            sides[name, SIDES[0]] = Reference(program, path, folder)
            sides |= {(name, side): ours(path, zygote) for side, zygote in by_side.items()}
        by_key: dict[tuple[str, str], list[float]] = {key: [] for key in sides}
        began = time.monotonic()
        for turn in range(asked.rounds):
            if turn >= 2 and time.monotonic() - began >= asked.seconds:
                break
            for name, (_, runs) in models.items():
                in_turn = [key for key in sides if key[0] == name]
                for key in in_turn[:: -1 if turn % 2 else 1]:
                    by_key[key].append(sides[key](runs, 1))
    if asked.json is not None:
        asked.json.write_text(json.dumps({" / ".join(key): values for key, values in by_key.items()}))
    report(by_key)


if __name__ == "__main__":
    main()
