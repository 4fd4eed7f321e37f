"""Figures of an OpenAI-compatible server from what its client saw. Pure; what too few requests cannot show is left out.

One level of load at a time: the first level's have plain names (`output_tokens_per_s`), the others' begin with their level
(`c16_output_tokens_per_s` with 16 requests in flight, `r5_…` at 5 a second, `r0p5_…` at one in two seconds).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

from drivers.openai.sse import ChatAnswer, StreamEnd
from drivers.openai.workload import Objectives

MIN_SAMPLES: Final = {90: 44, 99: 459}
"""Samples from which a percentile is told: the least n with (p/100)^n ≤ 0.01."""
LEAST: Final = 20
"""Answers from which a rise can be told from chance."""
SURE: Final = 2.58
"""Deviations of Mann and Kendall's count from what chance gives: 99 of 100 in a two-sided test."""
RISE: Final = 2.0
"""The last third waits so many times as long as the first for its first piece."""
LOOKED_AT: Final = 300
"""The latest answers that are compared: each with each."""


def rate_name(rate: float) -> str:
    """`r5`, `r0p5`."""
    return "r" + f"{rate:g}".replace(".", "p").replace("+", "").replace("-", "m")


def of_level(
    prefix: str, answers: Sequence[ChatAnswer], wall_s: float, slo: Objectives, *, planned: bool = False
) -> dict[str, float]:
    """The figures of one level. `planned`: sent at given times. `prefix` ends with an underscore; it is empty for the level whose times
    travel raw, and no percentiles are made of these here."""
    complete = [answer for answer in answers if answer.ended is StreamEnd.COMPLETE]
    figures: dict[str, float] = {
        "requests": len(answers),
        "requests_failed": sum(answer.ended is StreamEnd.FAILED for answer in answers),
        "requests_incomplete": sum(answer.ended is StreamEnd.INCOMPLETE for answer in answers),
    }
    if wall_s > 0:
        figures["requests_per_s"] = len(complete) / wall_s
    figures |= _tokens(complete, wall_s)
    for name, times in (
        ("ttft_ms", [answer.ttft_ns for answer in complete]),
        ("tpot_ms", [answer.tpot_ns for answer in complete]),
        ("e2e_ms", [answer.e2e_ns for answer in complete]),
    ):
        if prefix:
            figures |= percentiles(name, [time for time in times if time is not None])
    if slo.any and wall_s > 0 and not _unknown(complete, slo):
        good = sum(meets(answer, slo) for answer in complete)
        figures["goodput_rps"] = good / wall_s
        if answers:
            figures["goodput_share"] = good / len(answers)
    if planned and answers:
        figures["lag_ms_max"] = max(answer.lag_ns for answer in answers) / 1e6
    return {prefix + name: value for name, value in figures.items()}


def _tokens(complete: Sequence[ChatAnswer], wall_s: float) -> dict[str, float]:
    """Of tokens, only where the server told them for each answer: a sum without some of them would be too small."""
    figures: dict[str, float] = {}
    output = [answer.output_tokens for answer in complete if answer.output_tokens is not None]
    if complete and len(output) == len(complete):
        figures["output_tokens"] = sum(output)
        if wall_s > 0:
            figures["output_tokens_per_s"] = sum(output) / wall_s
        pieces = sum(answer.pieces for answer in complete)
        if pieces and any(answer.ttft_ns is not None for answer in complete):
            figures["tokens_per_piece"] = sum(output) / pieces
    prompt = [answer.prompt_tokens for answer in complete if answer.prompt_tokens is not None]
    if complete and len(prompt) == len(complete):
        figures["prompt_tokens"] = sum(prompt)
    return figures


def percentiles(name: str, times: Sequence[int]) -> dict[str, float]:
    """`ttft_ms_p50`, which is the median, and the others by nearest rank, in milliseconds, as far as `times` (nanoseconds) are enough."""
    if not times:
        return {}
    ordered = sorted(times)
    return {f"{name}_p50": median(ordered) / 1e6} | {
        f"{name}_p{percent}": ordered[math.ceil(percent * len(ordered) / 100) - 1] / 1e6
        for percent, least in MIN_SAMPLES.items()
        if len(ordered) >= least
    }


def meets(answer: ChatAnswer, slo: Objectives) -> bool:
    """Whether a complete answer was as fast as was wanted. One token has no time between tokens."""
    for limit, time in (
        (slo.ttft_ms, answer.ttft_ns),
        (slo.e2e_ms, answer.e2e_ns),
        (slo.tpot_ms, answer.tpot_ns),
    ):
        if limit is not None and time is not None and time > limit * 1e6:
            return False
    return True


def _unknown(complete: Sequence[ChatAnswer], slo: Objectives) -> bool:
    """Something is wanted that nobody could see."""
    if slo.ttft_ms is not None and any(answer.ttft_ns is None for answer in complete):
        return True
    return slo.tpot_ms is not None and any(
        answer.output_tokens is None or answer.ttft_ns is None for answer in complete
    )


def rising(times: Sequence[int]) -> bool:
    """Whether times, in the order of sending, rise beyond chance and by much: the server takes in less than comes.

    Mann and Kendall's test for a trend, and the median of the last third at `RISE` times that of the first.
    """
    recent = times[-LOOKED_AT:]
    n = len(recent)
    if n < LEAST:
        return False
    third = n // 3
    first, last = sorted(recent[:third])[third // 2], sorted(recent[-third:])[third // 2]
    if last < RISE * first:
        return False
    score = sum(
        (late > early) - (late < early) for at, early in enumerate(recent) for late in recent[at + 1 :]
    )
    deviation = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    return score > SURE * deviation
