"""Are our medians right? A driver's launch against a tight C program in a process of its own, interleaved.

    python benchmarks/measuring/inference_bias.py [rounds]

The reference (reference_loop.c, compiled here) opens onnxruntime's library, loads the model, fills the same inputs and runs it with
the same threads and options; its first fifth is dropped. Beside it the loops that our driver falls back to: calls by ctypes where
there is no compiler, IO binding where the C interface is not to be had. The order changes from round to round. For each model:
the median of each side over the rounds, and the median of the paired ratios to the reference (target: within 5 %). The models are
made here or come from installed packages, so nothing has to be fetched.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from drivers.contract.boot import VARIABLE

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from drivers.contract.base import Limits, MeasureReport, WorkOrder
from drivers.inputs.made import make
from drivers.launch.launch import Zygote, measure
from drivers.native import library as native
from drivers.native.ort_api import NUMBERS
from drivers.onnx.session import inputs_of, options, runtime
from protocol.formats.shapes import GivenSizes, resolve

SOURCE = Path(__file__).with_name("reference_loop.c")
UNIT = "CPU (ONNX)"


def installed(package: str, path: str) -> str:
    """A file inside an installed package."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return str(Path(spec.submodule_search_locations[0]) / path)


def layers(path: Path, width: int, batch: int, depth: int) -> str:
    """A chain of `depth` dense layers."""
    source = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array((source.standard_normal((width, width)) / width).astype(np.float32), f"w{n}")
        for n in range(depth)
    ]
    nodes = []
    for n in range(depth):
        nodes.append(helper.make_node("MatMul", [f"x{n}", f"w{n}"], [f"m{n}"]))
        nodes.append(helper.make_node("Relu", [f"m{n}"], [f"x{n + 1}"]))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "layers",
        [value("x0", TensorProto.FLOAT, [batch, width])],
        [value(f"x{depth}", TensorProto.FLOAT, [batch, width])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    path.write_bytes(model.SerializeToString())
    return str(path)


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
        """Median in microseconds, the first fifth left out."""
        command = [*self._before, str(runs), str(threads), *self._outputs]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        samples = [int(line) for line in done.stdout.split()]
        return statistics.median(samples[runs // 5 :]) / 1e3


def ours(model: str, zygote: Zygote) -> Callable[[int, int], float]:
    """A launch of ours: median in microseconds."""

    def once(runs: int, threads: int) -> float:
        order = WorkOrder(model, UNIT, runs=runs, loads=1, threads=threads, check=False)
        (measured,) = [
            event for event in measure(order, Limits(), zygote) if isinstance(event, MeasureReport)
        ]
        return statistics.median(measured.samples_ns) / 1e3

    return once


def zygote_in(cache: Path, said: str = "") -> Zygote:
    """A zygote whose launches find what `said` names, as if that were all that this device can do; empty: what it can."""
    os.environ[VARIABLE] = str(cache)
    library = native.library()
    if said and library is not None:
        cache.mkdir(mode=0o700)
        proof = cache / f"{native.key(library, native.compiler())}.proved"
        proof.write_text(said, "ascii")
        proof.chmod(0o400)
    return Zygote("onnx").start()


def main() -> None:
    """Print the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        program = folder / "reference_loop"
        compiler = native.compiler()
        assert compiler is not None, "a C compiler is needed for the reference"
        subprocess.run([compiler, "-O2", "-o", str(program), str(SOURCE), "-ldl"], check=True)
        nano = folder / "nano.onnx"
        nano.write_bytes(native.TINY_MODEL)
        models = {  # name: path, runs
            "nano": (str(nano), 20_000),
            "tiny": (layers(folder / "tiny.onnx", 128, 1, 6), 10_000),
            "small": (layers(folder / "small.onnx", 512, 16, 8), 300),
            "magika": (installed("magika", "models/standard_v3_3/model.onnx"), 80),
        }
        with (
            zygote_in(folder / "compiled") as compiled,
            zygote_in(folder / "ctypes", native.CALLS_ONLY) as by_ctypes,
            zygote_in(folder / "python", native.NOTHING) as by_python,
        ):
            sides: dict[str, dict[str, Callable[[int, int], float]]] = {
                name: {
                    "C program": Reference(program, path, folder),
                    "ours": ours(path, compiled),
                    "ctypes": ours(path, by_ctypes),
                    "IO binding": ours(path, by_python),
                }
                for name, (path, _) in models.items()
            }
            by_key: dict[tuple[str, str], list[float]] = {
                (name, side): [] for name in models for side in sides[name]
            }
            for turn in range(rounds):
                for name, (_, runs) in models.items():
                    in_turn = list(sides[name].items())
                    for side, once in in_turn[:: -1 if turn % 2 else 1]:
                        by_key[name, side].append(once(runs, 1))
    print(f"{'model':8} {'side':12} {'µs':>10} {'ratio':>7} {'quartiles':>17}   ({rounds} rounds, 1 thread)")
    for name, side in by_key:
        ratios = [b / a for a, b in zip(by_key[name, "C program"], by_key[name, side], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"{name:8} {side:12} {statistics.median(by_key[name, side]):10.2f} {middle:7.3f} {low:8.3f} – {high:.3f}"
        )


if __name__ == "__main__":
    main()
