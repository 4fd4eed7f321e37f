"""The numbers of a complete row, by field name, from an unpacked record. A number that was not measured is None, and its cell empty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Final, Literal

from protocol.values.record import Accelerator, LoadSample, Record, Timing
from protocol.values.task import Measure
from results.row.effect import mean_share, remarks, stall_share
from results.row.energy import MeasuredEnergy, measured_energy
from results.row.record import SERVED, RecordLaunch, RecordView
from results.row.sketches import show
from results.row.stats import centre, median, outliers, summarise
from results.row.sustained import findings_of, phases_of
from results.row.verdict import Finding, findings
from results.row.verdicts import RowVerdict
from results.row.witness import WitnessAccount, doubts, unexplained_s, unrepeated, witnessed_max_ms

MB: Final = 1024 * 1024
TICKS_S: Final = 0.2
"""The processor time of a process with a limit, such as a run, comes in ticks of up to 10 ms: over less than this it means nothing."""

FIGURES: Final[dict[str, str]] = {
    "output_tokens_per_s": "tokens_per_second",
    "output_tokens": "output_tokens",
    "goodput_rps": "goodput",
    "rouge1_f": "rouge1",
    "rouge2_f": "rouge2",
    "rougel_f": "rouge_l",
    "pre_ms": "pre_ms",
    "post_ms": "post_ms",
}
"""Figures of a record that have a column of their own, with its field. Records from before devices sent answers have the ROUGE figures."""
SERIES: Final[dict[str, str]] = {
    "ttft": "ttft_ms_median",
    "itl": "itl_ms_median",
    "tpot": "tpot_ms_median",
    "e2e": "e2e_ms_median",
    "pre": "pre_ms",
    "post": "post_ms",
}
"""Series of a record, with the field that holds the series' median."""

PROCESSORS: Final = "CPU "
"""Prefix of units that are the device's processors."""

Access = Literal["white", "gray", "black"]


def measure_figures(
    record: Record,
    observed: RecordView,
    measure: Measure,
    simulated: bool = False,
    account: WitnessAccount | None = None,
    *,
    listed: bool = False,
) -> dict[str, object]:
    """All measurements of a complete task, by field of its row, and the verdict. `simulated`: nothing was measured. `account`: what the
    scheduler witnessed, if a stranger measured it. `listed`: leave out figures that no list shows (`FigureColumn`).
    """
    ran = record.ran
    reasons = judge(record, observed, measure, simulated=simulated, account=account)
    verdict, why = reasons[0][0], "; ".join(why for _, why in reasons)
    figures: dict[str, object] = {"verdict": str(verdict), "verdict_reason": why}
    if all(word is not RowVerdict.BUSY_HOST for word, _ in reasons):
        figures["remarks"] = "; ".join(remarks(observed.launches, is_oversubscribed(record, observed)))
    figures |= _loads(record, observed) | _series(record, observed) | _witnessed(observed, account)
    if record.timings and record.timings[0].output is not None:
        figures["output_sketch"] = show(record.timings[0].output)
    if ran is not None:
        figures |= {
            "output_sha256": ran.output_sha256 or "",
            "max_error": ran.max_error,
            "tolerance": ran.tolerance,
            "compared": ran.compared,
            "access": access(record),
        }
    if observed.runs:
        figures |= _inferences(record, observed, measure.batch)
        if not listed:
            figures |= _outliers(observed) | _host(observed.launches)
    if record.accelerator is not None:
        figures |= _accelerator(record.accelerator)
    energy = measured_energy(record, observed)
    if energy is not None and observed.inferences:
        figures |= {
            "energy_source": energy.source,
            "energy_per_inference_j": energy.joules / observed.inferences,
        }
    return figures | _sustained(observed, energy)


def _sustained(observed: RecordView, energy: MeasuredEnergy | None) -> dict[str, object]:
    seen = phases_of(observed, energy.stretch_j if energy else ())
    if seen is None:
        return {}
    return {
        "burst_ms": seen.burst.median_ms,
        "knee_s": seen.knee_s,
        "steady_ms": seen.steady.median_ms if seen.steady else None,
        "slowdown_percent": _percent(seen.slowdown),
        "recovery_s": seen.recovery_s,
        "burst_j": seen.burst.joules,
        "steady_j": seen.steady.joules if seen.steady else None,
        "sustained": seen.text(),
    }


def judge(
    record: Record,
    observed: RecordView,
    measure: Measure,
    *,
    simulated: bool = False,
    account: WitnessAccount | None = None,
) -> list[Finding]:
    """What the numbers of a complete record are worth: each reason, gravest first."""
    ran = [each for each in (record.ran, *(record.ran_beside or ())) if each is not None]
    differs = next((each for each in ran if each.agrees is False), None)
    checked = bool(ran) and all(each.agrees for each in ran)
    found = findings(
        observed,
        agrees=False if differs is not None else checked or None,
        difference=differs.compared if differs is not None else "",
        precision=measure.precision,
        accelerator=record.accelerator,
        crowded=is_oversubscribed(record, observed),
        threads=_threads(record),
        simulated=simulated,
        doubts=doubts(observed, account),
        unrepeated=unrepeated(account),
    )
    return found if observed.sustained is None else findings_of(observed, found)


def _witnessed(observed: RecordView, account: WitnessAccount | None) -> dict[str, object]:
    if account is None:
        return {}
    unexplained = unexplained_s(observed, account)
    return {
        "witnessed_s": account.result_s,
        "inference_ms_witnessed_max": witnessed_max_ms(observed, account),
        "unexplained_percent": _percent(unexplained, account.result_s or 0.0),
        "canary": account.canary,
    }


def is_oversubscribed(record: Record, observed: RecordView) -> bool:
    """Whether the run's own threads wait for each other, so that waiting says nothing about other work. With more threads than cores,
    always; with as many threads as cores, only if the others' share is known and so can tell whose waiting it was.
    """
    cores = record.device.cores
    if record.ran is None or not cores:
        return False
    full = record.ran.threads == cores and mean_share(observed.launches, "others") is not None
    return full or record.ran.threads > cores


def _threads(record: Record) -> int | None:
    """Threads that compute an inference on the device's processors; None if something else computes it, or the number is unknown."""
    ran = record.ran
    return ran.threads or None if ran is not None and ran.unit.startswith(PROCESSORS) else None


def access(record: Record) -> Access:
    """How much the driver could see: white, it loaded the model itself; gray, it saw a server's process and its answers; black, only
    answers.
    """
    ran = record.ran
    if ran is None or not ran.unit.startswith(SERVED):
        return "white"
    return "gray" if "access: gray" in ran.providers else "black"


def _loads(record: Record, observed: RecordView) -> dict[str, object]:
    """Cold loads are kept apart from the other loads; if all loads were cold, the figures are of those."""
    load = summarise(observed.fresh or observed.cold)
    warm = summarise(observed.warm)
    fresh = tuple(load for load in record.loads if load.kind != "warm")
    return {
        "load_ms_median": load.median,
        "load_ms_average": load.average,
        "load_ms_std_dev": load.stddev,
        "load_ms_min": load.low,
        "load_ms_max": load.high,
        "load_ms_first": observed.loads[0] / 1e6 if observed.loads else None,
        "load_first_kind": str(fresh[0].kind) if fresh else "",
        "loads": len(observed.loads) or None,
        "warm_load_ms": warm.median,
        "peak_load_ram_usage": _highest(fresh, above=True),
        "peak_load_ram_total": _highest(fresh, above=False),
    }


def _inferences(record: Record, observed: RecordView, batch: int | None) -> dict[str, object]:
    timings = record.timings
    ordered = [launch.ordered for launch in observed.launches]
    run, middle = summarise(list(chain.from_iterable(ordered))), centre(ordered)
    per_sample = max(timing.per_sample for timing in timings)
    # means of several inferences scatter less than single inferences: leave spread and percentiles empty
    single = per_sample == 1
    switches = [timing.switches for timing in timings]
    served = record.ran is not None and record.ran.unit.startswith(SERVED)
    return {
        "inference_ms_median": middle.median,
        "inference_ms_median_low": middle.low,
        "inference_ms_median_high": middle.high,
        "inference_ms_average": run.average,
        "inference_ms_std_dev": run.stddev if single else None,
        "inference_ms_first": observed.warmup[0] / 1e6 if observed.warmup else None,
        "inference_ms_min": run.low if single else None,
        "inference_ms_max": run.high if single else None,
        "inference_ms_p50": run.median if single else None,
        "inference_ms_p90": run.p90 if single else None,
        "inference_ms_p95": run.p95 if single else None,
        "inference_ms_p99": run.p99 if single else None,
        "throughput_per_s": 1000 * (batch or 1) / middle.median if middle.median and not served else None,
        "half_width_percent": _percent(middle.half_width),
        "horizon_s": max(timing.began_s + timing.wall_s for timing in timings),
        "launches": middle.launches,
        "launch_spread_percent": _percent(middle.spread),
        "runs": run.n,
        "per_sample": per_sample,
        "warmups": len(observed.warmup),
        "cpu_percent": _cpu_percent(record),
        "peak_inference_ram_usage": _highest(timings, above=True),
        "peak_inference_ram_total": _highest(timings, above=False),
        "timer_overhead_ns": max(timing.timer_ns for timing in timings) or None,
        "involuntary_switches": None if None in switches else sum(number or 0 for number in switches),
    }


def _outliers(observed: RecordView) -> dict[str, object]:
    """Outliers of single inferences: means of several scatter differently."""
    if any(launch.per_sample != 1 for launch in observed.launches):
        return {}
    odd = outliers([launch.ordered for launch in observed.launches])
    return {"outliers_mild": odd.mild, "outliers_severe": odd.severe, "outliers_mad": odd.far}


def _host(launches: Sequence[RecordLaunch]) -> dict[str, object]:
    hosts = [launch.host for launch in launches]
    clocks = [host.clock_mhz for host in hosts if host.clock_mhz is not None]
    throttles = [host.throttles for host in hosts if host.throttles is not None]
    battery = [host.on_battery for host in hosts if host.on_battery is not None]
    temperatures = (host.temperature_c for host in hosts if host.temperature_c is not None)
    return {
        "stall_percent": _percent(stall_share(launches)),
        "others_percent": _percent(mean_share(launches, "others")),
        "steal_percent": _percent(mean_share(launches, "steal")),
        "clock_mhz": median(clocks) if clocks else None,
        "temperature_c": max(temperatures, default=None),
        "throttles": sum(throttles) if throttles else None,
        "on_battery": any(battery) if battery else None,
    }


def _accelerator(facts: Accelerator) -> dict[str, object]:
    return {
        "accelerator": facts.device,
        "accelerator_source": facts.source,
        "gpu_util": _percent(facts.utilisation),
        "vram_mb": None if facts.memory is None else facts.memory / MB,
        "power_w": facts.power_w,
        "idle_power_w": facts.idle_w,
        "gpu_clock_mhz": facts.clock_mhz,
        "gpu_temperature_c": facts.temperature_c,
        "gpu_throttled": "; ".join(facts.throttled),
    }


def _cpu_percent(record: Record) -> float | None:
    """CPU use of the process that ran the model, which for a server is not its client. None for too few ticks."""
    wall_s = sum(timing.wall_s for timing in record.timings)
    if wall_s < TICKS_S or (record.ran is not None and record.ran.driver == "api"):
        return None
    return _percent(sum(timing.cpu_s for timing in record.timings), wall_s)


def _series(record: Record, observed: RecordView) -> dict[str, object]:
    """Medians of series, figures that have a column, and all other figures in one column."""
    fields: dict[str, object] = {
        field: median(times) / 1e6 for name, field in SERIES.items() if (times := observed.series.get(name))
    }
    if times := observed.series.get("ttft"):
        fields["ttft_ms_p90"] = summarise(times).p90
    fields |= {field: record.figures[name] for name, field in FIGURES.items() if name in record.figures}
    others = {name: value for name, value in record.figures.items() if name not in FIGURES}
    fields["figures"] = "; ".join(f"{name}={value:.9g}" for name, value in sorted(others.items()))
    return fields


def _percent(part: float | None, whole: float = 1.0) -> float | None:
    """None if the quotient is meaningless: over no time, or over so little that it is not finite."""
    if part is None or whole <= 0:
        return None
    percent = 100 * part / whole
    return percent if math.isfinite(percent) else None


def _highest(samples: tuple[LoadSample, ...] | tuple[Timing, ...], *, above: bool) -> float | None:
    """The highest peak in MB, in total or above each sample's baseline; None if none was measured."""
    peaks = [
        max(sample.peak - (sample.baseline or 0 if above else 0), 0)
        for sample in samples
        if sample.peak is not None and (sample.baseline is not None or not above)
    ]
    return max(peaks) / MB if peaks else None
