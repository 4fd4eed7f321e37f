"""Figures of an OpenAI-compatible server, computed from what its client observed. Figures that need more requests are left out.

Each level of load has its own figures: the first level's have plain names (`output_tokens_per_s`), the others' begin with their level
(`c16_output_tokens_per_s` with 16 requests in flight, `r5_…` at 5 a second, `r0p5_…` at one in two seconds).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

from drivers.openai.sse import RequestResult
from drivers.openai.workload import Objectives

MIN_SAMPLES: Final = {90: 44, 99: 459}
"""Samples that a percentile needs: the least n with (p/100)^n ≤ 0.01."""
MIN_TREND: Final = 20
"""Requests that a trend needs."""
SIGNIFICANT: Final = 2.58
"""z of the Mann-Kendall test: 99 % two-sided."""
RISE: Final = 2.0
"""For a rise, the median of the last third is at least this many times that of the first."""
MAX_TREND: Final = 300
"""Most latest requests that are compared with each other."""


def rate_name(rate: float) -> str:
    """A level's name by its rate, such as `r5` or `r0p5`."""
    return "r" + f"{rate:g}".replace(".", "p").replace("+", "").replace("-", "m")


def of_level(
    prefix: str, results: Sequence[RequestResult], wall_s: float, slo: Objectives, *, planned: bool = False
) -> dict[str, float]:
    """The figures of one level. `planned`: its requests were sent at given times. `prefix`: ends with an underscore, or is empty for the
    first level, which gets no percentiles because its raw times are reported."""
    complete = [result for result in results if not result.error]
    figures: dict[str, float] = {
        "requests": len(results),
        "requests_failed": sum(bool(result.error) and not result.pieces for result in results),
        "requests_incomplete": sum(bool(result.error) and result.pieces > 0 for result in results),
    }
    if wall_s > 0:
        figures["requests_per_s"] = len(complete) / wall_s
    figures |= _tokens(complete, wall_s)
    for name in ("ttft", "tpot", "e2e") if prefix else ():
        times = [getattr(result, f"{name}_ns") for result in complete]
        figures |= percentiles(f"{name}_ms", [time for time in times if time is not None])
    if slo != Objectives() and wall_s > 0 and not _unobserved(complete, slo):
        good = sum(meets(result, slo) for result in complete)
        figures["goodput_rps"] = good / wall_s
        if results:
            figures["goodput_share"] = good / len(results)
    if planned and results:
        figures["lag_ms_max"] = max(result.lag_ns for result in results) / 1e6
    return {prefix + name: value for name, value in figures.items()}


def _tokens(complete: Sequence[RequestResult], wall_s: float) -> dict[str, float]:
    """Token figures, only if the server reported tokens for every request: otherwise a sum would be too small."""
    figures: dict[str, float] = {}
    output = [result.output_tokens for result in complete if result.output_tokens is not None]
    if complete and len(output) == len(complete):
        figures["output_tokens"] = sum(output)
        if wall_s > 0:
            figures["output_tokens_per_s"] = sum(output) / wall_s
        pieces = sum(result.pieces for result in complete)
        if pieces and any(result.ttft_ns is not None for result in complete):
            figures["tokens_per_piece"] = sum(output) / pieces
    prompt = [result.prompt_tokens for result in complete if result.prompt_tokens is not None]
    if complete and len(prompt) == len(complete):
        figures["prompt_tokens"] = sum(prompt)
    return figures


def percentiles(name: str, times: Sequence[int]) -> dict[str, float]:
    """Percentiles in milliseconds, from `times` in nanoseconds: p50 is the median, the others use the nearest rank. Each needs enough
    `times`."""
    if not times:
        return {}
    ordered = sorted(times)
    return {f"{name}_p50": median(ordered) / 1e6} | {
        f"{name}_p{percent}": ordered[math.ceil(percent * len(ordered) / 100) - 1] / 1e6
        for percent, least in MIN_SAMPLES.items()
        if len(ordered) >= least
    }


def meets(result: RequestResult, slo: Objectives) -> bool:
    """Whether a complete request met its objectives. A request with a single token has no time between tokens."""
    pairs = ((slo.ttft_ms, result.ttft_ns), (slo.e2e_ms, result.e2e_ns), (slo.tpot_ms, result.tpot_ns))
    return not any(limit is not None and time is not None and time > limit * 1e6 for limit, time in pairs)


def _unobserved(complete: Sequence[RequestResult], slo: Objectives) -> bool:
    """Whether an objective could not be observed."""
    if slo.ttft_ms is not None and any(result.ttft_ns is None for result in complete):
        return True
    return slo.tpot_ms is not None and any(
        result.output_tokens is None or result.ttft_ns is None for result in complete
    )


def rising(times: Sequence[int]) -> bool:
    """Whether times, in the order of sending, rise beyond chance (Mann-Kendall) and by `RISE`, so that the server cannot keep up."""
    recent = times[-MAX_TREND:]
    n = len(recent)
    if n < MIN_TREND:
        return False
    third = n // 3
    first, last = sorted(recent[:third])[third // 2], sorted(recent[-third:])[third // 2]
    if last < RISE * first:
        return False
    score = sum(
        (late > early) - (late < early) for at, early in enumerate(recent) for late in recent[at + 1 :]
    )
    deviation = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    return score > SIGNIFICANT * deviation
