"""Are the llama.cpp driver's tokens per second those of llama-bench? Needs the extra llamacpp, and llama-bench of the same llama.cpp.

    python benchmarks/measuring/llama_bench_bias.py model.gguf --llama-bench build/bin/llama-bench [--depth 0] [--threads 1] [--rounds 5]

The driver's launch and llama-bench in turns: the median of each side's tokens per second, and the median of the paired ratios. Without
`--llama-bench`, a plain loop in llama-cpp-python's own API stands in for it, in a process of its own.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from drivers.contract.base import Limits, RunFindings, WorkOrder
from drivers.launch.launch import Zygote, measure

LIMITS = Limits(load_s=300, run_s=1800, memory_bytes=64 << 30)
REPEATS = 5
"""As llama-bench's default."""

Rates = dict[str, float]
"""Tokens per second of `pp` and `tg`."""


def alone(command: list[str]) -> str:
    """What a program prints. In a session of its own, as a launch is: the scheduler shares the processors out by session."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True)
    return done.stdout


def ours(zygote: Zygote, model: str, unit: str, dims: dict[str, int], threads: int) -> Rates:
    order = WorkOrder(
        model, unit, runs=REPEATS * dims["generate"], loads=1, threads=threads, dims=dims, check=False
    )
    (found,) = (event for event in measure(order, LIMITS, zygote) if isinstance(event, RunFindings))
    return {"pp": found.figures["prompt_tokens_per_s"], "tg": found.figures["output_tokens_per_s"]}


def theirs(program: str, model: str, unit: str, dims: dict[str, int], threads: int) -> Rates:
    """llama-bench's means."""
    sizes = {"-p": dims["prompt"], "-n": dims["generate"], "-d": dims["depth"], "-t": threads}
    sizes |= {"-r": REPEATS, "-ngl": 0 if unit.startswith("CPU") else 999}
    options = [word for name, size in sizes.items() for word in (name, str(size))]
    command = [program, "-m", model, "-o", "json", *options]
    tests = json.loads(alone(command))
    return {"pp" if test["n_prompt"] else "tg": test["avg_ts"] for test in tests}


def plain(model: str, unit: str, dims: dict[str, int], threads: int) -> Rates:
    """A loop as llama-bench's, in this file's own words, in a process of its own."""
    command = [sys.executable, __file__, model, "--unit", unit, "--threads", str(threads), "--loop"]
    for name, size in dims.items():
        command += [f"--{name}", str(size)]
    rates: Rates = json.loads(alone(command))
    return rates


def loop(model: str, unit: str, dims: dict[str, int], threads: int) -> Rates:
    import llama_cpp as lib

    options = lib.llama_model_default_params()
    options.n_gpu_layers = 0 if unit.startswith("CPU") else 999
    loaded = lib.llama_model_load_from_file(model.encode(), options)
    words = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(loaded))
    room = lib.llama_context_default_params()
    room.n_ctx = dims["depth"] + max(dims["prompt"], dims["generate"])
    room.n_batch, room.n_threads, room.n_threads_batch = 2048, threads, threads
    context = lib.llama_init_from_model(loaded, room)

    def decode(count: int, each: int) -> None:
        tokens = (ctypes.c_int32 * count)(*(at * 7919 % words for at in range(count)))
        for at in range(0, count, each):
            piece = ctypes.cast(ctypes.byref(tokens, 4 * at), ctypes.POINTER(ctypes.c_int32))
            if lib.llama_decode(context, lib.llama_batch_get_one(piece, min(each, count - at))):
                raise SystemExit("llama_decode failed")
            if each == 1:
                lib.llama_synchronize(context)
        lib.llama_synchronize(context)

    def rate(count: int, each: int) -> float:
        rates = []
        for turn in range(REPEATS + 1):
            lib.llama_memory_clear(lib.llama_get_memory(context), False)
            decode(dims["depth"], 2048)
            began = time.perf_counter()
            decode(count, each)
            rates += [count / (time.perf_counter() - began)] if turn else []
        return sum(rates) / len(rates)

    return {"pp": rate(dims["prompt"], 2048), "tg": rate(dims["generate"], 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model")
    parser.add_argument("--llama-bench", default="")
    parser.add_argument("--unit", default="CPU (llama.cpp)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--loop", action="store_true", help=argparse.SUPPRESS)
    for name, size in (("prompt", 512), ("generate", 128), ("depth", 0)):
        parser.add_argument(f"--{name}", type=int, default=size)
    chosen = parser.parse_args()
    dims = {name: getattr(chosen, name) for name in ("prompt", "generate", "depth")}
    given = (str(Path(chosen.model).resolve()), chosen.unit, dims, chosen.threads)
    if chosen.loop:
        print(json.dumps(loop(*given)))
        return
    sides: list[tuple[Rates, Rates]] = []
    with Zygote("llamacpp").start() as zygote:
        for turn in range(chosen.rounds):
            other = None
            for mine in (turn % 2, 1 - turn % 2):
                if mine:
                    own = ours(zygote, *given)
                else:
                    other = theirs(chosen.llama_bench, *given) if chosen.llama_bench else plain(*given)
            assert other is not None
            sides.append((own, other))
            print(f"round {turn + 1}: ours {own}, theirs {other}", flush=True)
    print(f"{'test':6} {'ours t/s':>10} {'theirs t/s':>10} {'ours/theirs':>12}   ({chosen.rounds} rounds)")
    for test in ("pp", "tg"):
        mine, other_ = (median(side[at][test] for side in sides) for at in (0, 1))
        ratio = median(own[test] / other[test] for own, other in sides)
        print(f"{test:6} {mine:10.2f} {other_:10.2f} {ratio:12.3f}")


if __name__ == "__main__":
    main()
