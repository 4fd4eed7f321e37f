"""Are the OpenVINO driver's medians right? Needs openvino: python -m pip install 'sark-node[openvino]'.

    python benchmarks/measuring/openvino_bias.py [MODEL …] [--rounds 11] [--threads 1] [--runs 200]

For each model (ONNX, or the .xml in a folder of OpenVINO IR; by default, chains of products made here), in turns, each in a process of its
own: the driver's launch; OpenVINO's own tool, `benchmark_app`, with the same hint and threads, in synchronous mode, as is usual for
latency; a plain loop over its Python API. If onnxruntime has OpenVINO, built in or as a plug-in that found a device, the same models
through onnxruntime follow, beside a plain loop over bound inputs and outputs.

The tool reads the runtime's own clock inside the call, excluding the call from Python. Prints the median of each in ms, the median of the
rounds' ratios (`ours/…`), and the ratio of the best rounds' 5th percentiles (`best/…`), which the tool does not report.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import onnxruntime
from beside import BiasBenchmark, Pair, chains, plain

from drivers.onnx.plugins import usable
from drivers.openvino.runtime import runtime
from drivers.openvino.units import CPU, settings
from protocol.formats.reference_model import chain_of_products

WARM = 30
TOOL = "import sys; sys.modules['openvino_telemetry'] = None; from openvino.tools.benchmark.main import main; main()"
MEDIAN = re.compile(r"Median:\s+([0-9.]+) (ms|us|μs|µs)")
PLAIN = """
import itertools
sys.modules["openvino_telemetry"] = None
import numpy as np
import openvino as ov
def calls():
    hints = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads}
    core = ov.Core()
    read = core.read_model(model)
    read.reshape({one: [1 if size.is_dynamic else size.get_length() for size in one.partial_shape] for one in read.inputs})
    request = core.compile_model(read, "CPU", hints).create_infer_request()
    for tensor in request.input_tensors:
        tensor.data[:] = np.random.standard_normal(tensor.shape).astype(tensor.data.dtype)
    return itertools.repeat(request.infer)
"""
THROUGH = """
import functools, itertools
import numpy as np
import onnxruntime as ort
def calls():
    name = "OpenVINOExecutionProvider"
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    built_in = []
    if name in ort.get_available_providers():
        built_in = [(name, {"device_type": "CPU", "num_of_threads": str(threads)})]
    else:
        import onnxruntime_ep_openvino
        ort.register_execution_provider_library(name, onnxruntime_ep_openvino.get_library_path())
        devices = [one for one in ort.get_ep_devices() if one.ep_name == name and one.device.type.name == "CPU"]
        options.add_provider_for_devices(devices[:1], {"num_of_threads": str(threads)})
    session = ort.InferenceSession(model, options, built_in)
    binding = session.io_binding()
    for one in session.get_inputs():
        shape = [size if isinstance(size, int) else 1 for size in one.shape]
        binding.bind_cpu_input(one.name, np.random.standard_normal(shape).astype(np.float32))
    for one in session.get_outputs():
        binding.bind_output(one.name)
    return itertools.repeat(functools.partial(session.run_with_iobinding, binding))
"""


def tool(model: Path, threads: int, runs: int) -> Pair:
    with tempfile.TemporaryDirectory() as folder:
        hints = Path(folder) / "hints.json"
        asked = {
            name: str(value) for name, value in settings("CPU", threads).items() if name != "PERFORMANCE_HINT"
        }
        hints.write_text(json.dumps({"CPU": asked}))
        command = [
            sys.executable,
            "-c",
            TOOL,
            "-m",
            str(model),
            "-d",
            "CPU",
            "-hint",
            "latency",
            "-api",
            "sync",
        ]
        command += ["-niter", str(runs), "-load_config", str(hints), *shapes(model)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = MEDIAN.search(done.stdout)
    assert found is not None, done.stdout
    return float(found[1]) * (1.0 if found[2] == "ms" else 1e-3), math.nan


def shapes(model: Path) -> list[str]:
    """The tool's option for models with a dynamic batch."""
    read = runtime().core.read_model(str(model))
    if not read.is_dynamic():
        return []
    given = (
        f"{one.any_name}[{','.join(str(1 if size.is_dynamic else size.get_length()) for size in one.partial_shape)}]"
        for one in read.inputs
    )
    return ["-shape", ",".join(given)]


def make(folder: Path) -> list[Path]:
    widths = (192, 512, 1024)
    return chains(folder, ".onnx", {width: partial(chain_of_products, width, 4, 32) for width in widths})


def given(model: Path) -> Mapping[str, str]:
    """For an IR, the driver takes the folder."""
    return {"model": str(model.parent)} if model.suffix == ".xml" else {}


if __name__ == "__main__":
    if find_spec("openvino") is not None:
        others = {"tool": tool, "plain": plain(PLAIN, WARM)}
        BiasBenchmark("openvino", CPU, runtime().title, make, others, warm=WARM, more=given).main(__doc__)
    if "OpenVINOExecutionProvider" in usable(onnxruntime, ["OpenVINOExecutionProvider"], ()):
        through = {"plain": plain(THROUGH, WARM)}
        BiasBenchmark("onnx", "OpenVINO CPU (ONNX)", "through onnxruntime", make, through, warm=WARM).main(
            __doc__
        )
