"""Are the LiteRT driver's medians right? Needs ai-edge-litert: python -m pip install 'sark-node[litert]'.

    python benchmarks/measuring/litert_bias.py [MODEL.tflite …] [--rounds 11] [--threads 1] [--runs 200]

For each model (by default, chains of products made here), in turns, each in a process of its own: the driver's launch; LiteRT's own tool
(`litert-benchmark`, which runs the newer CompiledModel; its figures have steps of 10 µs, so use models above 1 ms); a plain loop over the
interpreter. Prints the median of each in ms, the median of the rounds' ratios (`ours/…`), and the ratio of the best rounds' 5th percentiles
(`best/…`), which other work on the machine disturbs least.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from beside import BiasBenchmark, Pair, chains, plain

from drivers.litert.samples import perceptron
from drivers.litert.units import CPU, version

WARM = 30
PLAIN = """
import itertools
import numpy as np
from ai_edge_litert.interpreter import Interpreter
def calls():
    interpreter = Interpreter(model_path=model, num_threads=threads)
    interpreter.allocate_tensors()
    for one in interpreter.get_input_details():
        interpreter.set_tensor(one["index"], np.random.standard_normal(one["shape"]).astype(one["dtype"]))
    return itertools.repeat(interpreter.invoke)
"""


def tool(model: Path, threads: int, runs: int) -> Pair:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "ai_edge_litert.tools.benchmark_litert_model", "--model", str(model)]
        command += ["--num_threads", str(threads), "--num_runs", str(runs), "--warmup_runs", str(WARM)]
        subprocess.run([*command, "--result_json", str(result)], capture_output=True, check=True)
        latency = json.loads(result.read_text())["latency"]
        return float(latency["median_ms"]), float(latency["p5_ms"])


def make(folder: Path) -> list[Path]:
    return chains(folder, ".tflite", {width: partial(perceptron, width, 4) for width in (1024, 2048)})


if __name__ == "__main__":
    others = {"tool": tool, "plain": plain(PLAIN, WARM)}
    BiasBenchmark("litert", CPU, version(), make, others, warm=WARM).main(__doc__)
