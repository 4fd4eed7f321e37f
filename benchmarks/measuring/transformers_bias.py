"""Are the Transformers driver's medians right? Needs transformers: python -m pip install 'sark-node[transformers]'.

    python benchmarks/measuring/transformers_bias.py [--rounds 11] [--threads 1] [--runs 60]

An encoder and a language model with random weights. In turns, each in a process of its own: the driver's launch, and a plain loop
over transformers' own API: the encoder's call; the language model's call for one token on the cache that `generate` would keep. Prints the
median of each in ms and the medians of the rounds' ratios: of medians, and of 5th percentiles, which other work disturbs least.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from alternated import alternated

from drivers.contract.base import Limits, MeasureReport, WorkOrder
from drivers.launch.launch import Zygote, measure
from drivers.transformers.units import CPU

LIMITS = Limits(load_s=120, run_s=300)
WARM = 10
LENGTH = 128
MODELS = {"encoder": {"sequence": LENGTH}, "language": {"prompt": LENGTH, "generate": 32}}
PLAIN = """
import statistics, sys, time
import torch, transformers
model, threads, runs, warm, length = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(threads)
language = model.endswith("language")
kind = transformers.AutoModelForCausalLM if language else transformers.AutoModelForSequenceClassification
net = kind.from_pretrained(model).eval()
times = []
with torch.inference_mode():
    ids = torch.randint(0, 1000, (1, length))
    given, cache = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, None
    for at in range(warm + runs):
        if language:
            if at % 32 == 0:
                cache = transformers.DynamicCache()
            given = {"input_ids": ids[:, at % length : at % length + 1], "past_key_values": cache, "use_cache": True}
        began = time.perf_counter_ns()
        net(**given)
        times.append(time.perf_counter_ns() - began)
times = sorted(times[warm:])
print(statistics.median(times) / 1e6, statistics.quantiles(times, n=20)[0] / 1e6)
"""

Pair = tuple[float, float]
"""Median and 5th percentile in ms."""


def make(folder: Path) -> None:
    import torch
    import transformers as hf

    torch.manual_seed(0)
    bert = hf.BertConfig(
        num_hidden_layers=4, hidden_size=256, num_attention_heads=4, intermediate_size=1024, vocab_size=2000
    )
    llama = hf.LlamaConfig(
        num_hidden_layers=4,
        hidden_size=512,
        num_attention_heads=8,
        num_key_value_heads=4,
        intermediate_size=1024,
        vocab_size=2000,
    )
    hf.BertForSequenceClassification(bert).save_pretrained(folder / "encoder")
    hf.LlamaForCausalLM(llama).save_pretrained(folder / "language")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)  # a node of root runs models as nobody


def ours(zygote: Zygote, model: Path, threads: int, runs: int) -> Pair:
    order = WorkOrder(
        str(model),
        CPU,
        runs=runs,
        loads=1,
        warmup=WARM,
        threads=threads,
        check=False,
        dims=MODELS[model.name],
    )
    (measured,) = (event for event in measure(order, LIMITS, zygote) if isinstance(event, MeasureReport))
    times = [sample / 1e6 for sample in measured.samples_ns]
    return statistics.median(times), statistics.quantiles(times, n=20)[0]


def plain(model: Path, threads: int, runs: int) -> Pair:
    command = [sys.executable, "-c", PLAIN, str(model), *map(str, (threads, runs, WARM, LENGTH))]
    environ = os.environ | {"HF_HUB_OFFLINE": "1"}
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    middle, low = answer.stdout.split()
    return float(middle), float(low)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=60)
    chosen = parser.parse_args()
    print(f"{'model':10} {'ours':>9} {'plain':>9} {'ratio':>7} {'p5':>7}")
    with tempfile.TemporaryDirectory() as name, Zygote("transformers").start() as zygote:
        folder = Path(name)
        make(folder)
        for model in MODELS:
            given = (folder / model, chosen.threads, chosen.runs)
            sides = {"ours": partial(ours, zygote, *given), "plain": partial(plain, *given)}
            found = alternated(sides, chosen.rounds)
            pairs = list(zip(found["ours"], found["plain"], strict=True))
            medians = [statistics.median(pair[side][0] for pair in pairs) for side in (0, 1)]
            ratios = [statistics.median(own[at] / other[at] for own, other in pairs) for at in (0, 1)]
            print(
                f"{model:10} {medians[0]:9.3f} {medians[1]:9.3f} {ratios[0]:7.3f} {ratios[1]:7.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
