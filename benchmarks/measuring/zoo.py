"""Does everything run, with sensible shapes? A zoo of real models, and one model for each element type.

    python benchmarks/measuring/zoo.py [FOLDER…]

Measures, two runs each: a model of each element type that onnxruntime takes (made here), the full-size graphs and the classifier in the
packages of the `dev` extra, and every .onnx file below the folders, such as one filled by

    pip install --no-deps --target FOLDER silero-vad

Prints a line for each: status, shapes of its inputs, milliseconds, the output check. If sizes are missing, it prints the text that `bench`
would print, and measures with the shapes in that text. Exits with 1 if any model is not complete.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.path.insert(0, str(Path(__file__).parents[2]))

from models import installed

from drivers.contract.base import CheckReport, DriverError, Limits, MeasureReport, ModelDescription, WorkOrder
from drivers.launch.launch import Zygote, measure
from protocol.formats.model_files import FormatError
from protocol.formats.onnx import read_graph
from protocol.formats.shapes import GivenSizes, MissingShape, resolve
from tests.drivers import zoo

LIMITS = Limits(load_s=120, run_s=300)


def visit(model: Path, zygote: Zygote) -> tuple[bool, str]:
    """Whether a model is complete, and its line."""
    order, asked = WorkOrder(str(model), "CPU (ONNX)", runs=2, loads=1, warmup=1), ""
    try:
        resolve(read_graph(model).inputs, GivenSizes())
    except FormatError as why:
        return False, f"{'Refused':9} {why}"
    except MissingShape as why:
        order, asked = replace(order, shapes=why.example), f"  asked for: {why.options}"
    try:
        events = list(measure(order, LIMITS, zygote))
    except DriverError as why:
        return False, f"{'Failed':9} {type(why).__name__}: {why}"
    (result,) = [event for event in events if isinstance(event, ModelDescription)]
    (timed,) = [event for event in events if isinstance(event, MeasureReport)]
    (checked,) = [event for event in events if isinstance(event, CheckReport)]
    shapes = ", ".join(f"{name} {result.dtypes[name]}{list(shape)}" for name, shape in result.shapes.items())
    ms = statistics.median(timed.samples_ns) / 1e6
    right = {True: "right", False: "DIFFERS", None: "not compared"}[checked.agrees]
    said = checked.compared if checked.agrees is False else checked.note
    note = f" ({said})" if said else ""
    status = "Mismatch" if checked.agrees is False else "Complete"
    return checked.agrees is not False, f"{status:9} {ms:9.3f} ms  {right}{note}  {shapes}{asked}"


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as made, Zygote("onnx").start() as zygote:
        models = [zoo.put(Path(made), name) for name in zoo.TYPES]
        models += sorted(Path(installed("onnx", "backend/test/data/light")).glob("light_*.onnx"))
        models.append(Path(installed("magika", "models/standard_v3_3/model.onnx")))
        models += [path for folder in sys.argv[1:] for path in sorted(Path(folder).rglob("*.onnx"))]
        complete = 0
        for model in models:
            well, line = visit(model, zygote)
            complete += well
            name = model.name if model.stem != "model" else f"{model.parent.name}/{model.name}"
            print(f"{name[:34]:34} {line}", flush=True)
    print(f"{complete} of {len(models)} complete")
    sys.exit(complete != len(models))


if __name__ == "__main__":
    main()
