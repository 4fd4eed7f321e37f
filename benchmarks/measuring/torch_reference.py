"""The independent side of torch_bias.py, without any Sark code: a TorchScript model on a device, timed by the clock and by CUDA's events.

    python benchmarks/measuring/torch_reference.py MODEL DEVICE BATCH WIDTH RUNS THREADS

Prints the medians in nanoseconds as JSON, without the first fifth: `wall`, from the call until the device has finished; `events`, between
two events on the device's own stream (null without CUDA).
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch


def main(model: str, device: str, batch: int, width: int, runs: int, threads: int) -> None:
    torch.set_num_threads(threads)
    module = torch.jit.load(model, map_location=device).eval()
    x = torch.rand(batch, width, device=device)
    wall: list[float] = []
    events: list[float] = []
    cuda = device.startswith("cuda")
    with torch.inference_mode():
        for _ in range(runs):
            if cuda:
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                torch.cuda.synchronize()
                begin.record()
                module(x)
                end.record()
                end.synchronize()
                events.append(begin.elapsed_time(end) * 1e6)
            began = time.perf_counter_ns()
            module(x)
            if cuda:
                torch.cuda.synchronize()
            wall.append(time.perf_counter_ns() - began)
    kept = runs // 5
    print(
        json.dumps(
            {
                "wall": statistics.median(wall[kept:]),
                "events": statistics.median(events[kept:]) if events else None,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:7]))
