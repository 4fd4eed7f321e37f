"""How late the API driver's client sees a piece of text, compared with a server process that reports when it sent it.

    python benchmarks/measuring/api_bias.py [--streams 1,16,64] [--pieces 60] [--rounds 3] [--httpx]

Both sides read the host's monotonic clock. TTFT bias: arrival of the first piece at the client minus its sending at the server, which
includes the network (loopback), the kernel and the client. ITL bias: how much longer or shorter each gap is at the client than at the
server. Each stream carries 50 pieces per second. `--httpx` runs the same requests through httpx for comparison, if it is installed. Goal:
TTFT ≤ 1 ms, ITL ≤ 0.2 ms. Both processes share this host: with fewer than two free cores the figures show the host's load.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from drivers.openai.client import Client, read_server
from drivers.openai.load import Sweep, closed_loop
from drivers.openai.sse import RequestResult, ResponseParser

SERVER = Path(__file__).parents[2] / "tests" / "drivers" / "openai_server.py"


def body(pieces: int, number: int) -> bytes:
    return json.dumps(
        {
            "model": "plan-30-20",
            "messages": [{"role": "user", "content": str(number)}],
            "max_tokens": pieces,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()


async def ours(port: int, streams: int, pieces: int, first: int) -> dict[int, tuple[int, ...]]:
    client = Client(read_server(f"http://127.0.0.1:{port}/v1"))
    await client.warm(streams)

    async def ask(number: int) -> RequestResult:
        answer = ResponseParser(max_tokens=pieces)
        return await client.ask(
            "/v1/chat/completions", body(pieces, number), answer, 60, keep=True, keep_text=False
        )

    sweep = Sweep()
    numbers = iter(range(first, first + 2 * streams))
    await closed_loop(sweep, ask, numbers, streams, time.perf_counter_ns, bad=0)
    client.close()
    observed = {}
    for number, answered in sweep.results.items():
        assert not answered.error, answered.error
        assert answered.ttft_ns is not None
        at = answered.sent_ns + answered.ttft_ns
        observed[number] = (at, *(at := at + gap for gap in answered.itl_ns))
    return observed


async def through_httpx(port: int, streams: int, pieces: int, first: int) -> dict[int, tuple[int, ...]]:
    httpx: Any = importlib.import_module("httpx")
    observed = {}
    limits = httpx.Limits(max_connections=streams, max_keepalive_connections=streams)
    async with httpx.AsyncClient(limits=limits, timeout=60, trust_env=False) as client:
        numbers = iter(range(first, first + 2 * streams))

        async def stream() -> None:
            for number in numbers:
                stamps = []
                url = f"http://127.0.0.1:{port}/v1/chat/completions"
                async with client.stream("POST", url, content=body(pieces, number)) as response:
                    async for line in response.aiter_lines():
                        now = time.perf_counter_ns()
                        if line.startswith("data: {"):
                            choices = json.loads(line[6:])["choices"]
                            if choices and choices[0]["delta"].get("content"):
                                stamps.append(now)
                observed[number] = tuple(stamps)

        await asyncio.gather(*(stream() for _ in range(streams)))
    return observed


def biases(seen: dict[int, tuple[int, ...]], did: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """TTFT and ITL biases in ms."""
    first, gaps = [], []
    for result in did:
        stamps = seen.get(int(result["request"]["messages"][0]["content"]))
        if stamps is None:
            continue
        assert len(stamps) == len(result["sent"]), "pieces were merged or lost"
        first.append((stamps[0] - result["sent"][0]) / 1e6)
        gaps += [
            ((late - early) - (then - before)) / 1e6
            for (early, late), (before, then) in zip(pairwise(stamps), pairwise(result["sent"]), strict=True)
        ]
    return first, gaps


def shown(values: Sequence[float]) -> str:
    ordered = sorted(values)
    return (
        f"median {statistics.median(ordered):7.3f}  p95 {ordered[int(0.95 * (len(ordered) - 1))]:7.3f}"
        f"  worst {ordered[-1]:7.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", default="1,16,64")
    parser.add_argument("--pieces", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--httpx", action="store_true")
    given = parser.parse_args()
    clients = {"ours": ours} | ({"httpx": through_httpx} if given.httpx else {})
    with subprocess.Popen(
        [sys.executable, str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        print("milliseconds; |ITL| is the size of the difference, ITL mean its drift")
        for streams in map(int, given.streams.split(",")):
            for name, client in clients.items():
                first: list[float] = []
                gaps: list[float] = []
                for turn in range(given.rounds):
                    observed = asyncio.run(client(port, streams, given.pieces, turn * 10_000 + streams))
                    did = json.loads(bytes(asyncio.run(_did(port)).body))[-2 * streams :]
                    more = biases(observed, did)
                    first += more[0]
                    gaps += more[1]
                print(f"{streams:3} streams, {name:5}  TTFT  {shown(first)}")
                print(
                    f"{'':19}|ITL| {shown([abs(gap) for gap in gaps])}  mean {statistics.fmean(gaps):+.4f}",
                    flush=True,
                )
        process.stdin.close()  # type: ignore[union-attr]


async def _did(port: int) -> ResponseParser:
    client = Client(read_server(f"http://127.0.0.1:{port}/v1"))
    answer = await client.get("/did")
    client.close()
    return answer


if __name__ == "__main__":
    main()
