"""Do the llama.cpp driver and llama-bench agree on tokens per second? Needs the extra llamacpp, and llama-bench of the same llama.cpp.

    python benchmarks/measuring/llama_bench_bias.py model.gguf --llama-bench build/bin/llama-bench [--depth 0] [--threads 1] [--rounds 5]

The driver's launch and llama-bench take turns. For each side, over the repetitions (a prompt; `generate` tokens) of all rounds: tokens per
second of the median, and of the fastest tenth, which other work on the machine disturbs least (`--prompt 16 --generate 1 --repeats 200`).
Without `--llama-bench`, a plain loop in llama-cpp-python's own API replaces it, in a process of its own.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from drivers.contract.base import Limits, MeasureReport, RunFindings, WorkOrder
from drivers.launch.launch import Zygote, measure

LIMITS = Limits(load_s=300, run_s=1800, memory_bytes=64 << 30)

Times = dict[str, list[int]]
"""Nanoseconds of each repetition of `pp` and `tg`."""


def alone(command: list[str]) -> str:
    """The output of a program, run in a session of its own like a launch: the system's scheduler divides the processors by session."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True)
    return done.stdout


def ours(zygote: Zygote, model: str, unit: str, dims: dict[str, int], threads: int, repeats: int) -> Times:
    each = dims["generate"]
    order = WorkOrder(model, unit, runs=repeats * each, loads=1, threads=threads, dims=dims, check=False)
    events = list(measure(order, LIMITS, zygote))
    (found,) = (event for event in events if isinstance(event, RunFindings))
    (measured,) = (event for event in events if isinstance(event, MeasureReport))
    tokens = measured.samples_ns
    return {
        "pp": list(found.series["ttft"]),  # plus choosing a token: microseconds
        "tg": [sum(tokens[at : at + each]) for at in range(0, len(tokens), each)],
    }


def theirs(program: str, model: str, unit: str, dims: dict[str, int], threads: int, repeats: int) -> Times:
    """llama-bench's samples."""
    sizes = {"-p": dims["prompt"], "-n": dims["generate"], "-d": dims["depth"], "-t": threads, "-r": repeats}
    sizes["-ngl"] = 0 if unit.startswith("CPU") else 999
    options = [word for name, size in sizes.items() for word in (name, str(size))]
    tests = json.loads(alone([program, "-m", model, "-o", "json", *options]))
    return {"pp" if test["n_prompt"] else "tg": test["samples_ns"] for test in tests}


def plain(model: str, unit: str, dims: dict[str, int], threads: int, repeats: int) -> Times:
    """A loop like llama-bench's, written in this file, in a process of its own."""
    command = [sys.executable, __file__, model, "--unit", unit, "--loop"]
    for name, size in (*dims.items(), ("threads", threads), ("repeats", repeats)):
        command += [f"--{name}", str(size)]
    times: Times = json.loads(alone(command))
    return times


def loop(model: str, unit: str, dims: dict[str, int], threads: int, repeats: int) -> Times:
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

    def times(count: int, each: int) -> list[int]:
        taken = []
        for turn in range(repeats + 1):
            lib.llama_memory_clear(lib.llama_get_memory(context), False)
            decode(dims["depth"], 2048)
            began = time.perf_counter_ns()
            decode(count, each)
            taken += [time.perf_counter_ns() - began] if turn else []
        return taken

    return {"pp": times(dims["prompt"], 2048), "tg": times(dims["generate"], 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model")
    parser.add_argument("--llama-bench", default="")
    parser.add_argument("--unit", default="CPU (llama.cpp)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5, help="repetitions in a round, as llama-bench's -r")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--loop", action="store_true", help=argparse.SUPPRESS)
    for name, size in (("prompt", 512), ("generate", 128), ("depth", 0)):
        parser.add_argument(f"--{name}", type=int, default=size)
    chosen = parser.parse_args()
    dims = {name: getattr(chosen, name) for name in ("prompt", "generate", "depth")}
    given = (str(Path(chosen.model).resolve()), chosen.unit, dims, chosen.threads, chosen.repeats)
    if chosen.loop:
        print(json.dumps(loop(*given)))
        return
    other = partial(theirs, chosen.llama_bench) if chosen.llama_bench else plain
    both: tuple[Times, Times] = ({"pp": [], "tg": []}, {"pp": [], "tg": []})
    with Zygote("llamacpp").start() as zygote:
        for turn in range(chosen.rounds):
            for side in (turn % 2, 1 - turn % 2):
                times = ours(zygote, *given) if side == 0 else other(*given)
                for test in ("pp", "tg"):
                    both[side][test] += times[test]
    print(f"{'test':14} {'ours t/s':>10} {'theirs t/s':>11} {'ours/theirs':>12}   ({chosen.rounds} rounds)")
    for test, tokens in (("pp", dims["prompt"]), ("tg", dims["generate"])):
        for share, what in ((0.5, ""), (0.1, " best")):
            mine, its = (tokens * 1e9 / low(side[test], share) for side in both)
            print(f"{test}{tokens}{what:<9} {mine:12.2f} {its:11.2f} {mine / its:12.3f}")


def low(times: list[int], share: float) -> int:
    """The time that this share of the times does not exceed."""
    return sorted(times)[int(share * (len(times) - 1))]


if __name__ == "__main__":
    main()
