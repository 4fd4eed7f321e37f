"""What the numbers of a complete row are worth, and why: one word for the gravest reason, and all the reasons.

    simulated > unwitnessed > mismatch > unchecked > few-runs > throttled > busy-host > drift > bimodal > noisy > valid

There are two kinds of thresholds. The statistical ones follow from what a reader takes from a number: people act on a difference of a
tenth. Those of the host were chosen with `benchmarks/measuring/coverage.py`, which disturbs a device on purpose and counts what is flagged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protocol.values.record import Accelerator
from results.row.effect import HostFigure, host_figures, is_median_spoiled, waiting_effect
from results.row.record import RecordLaunch, RecordView
from results.row.stats import (
    MIN_LAUNCHES,
    Centre,
    centre_of,
    is_autocorrelated,
    launch_medians,
    median,
    nearest_rank,
)
from results.row.verdicts import VERDICTS_BY_SEVERITY, RowVerdict
from swarm.base.text import count

NOISY: Final = 0.10
"""Half the interval's width, as a share of the median, above which a row is noisy when no precision was requested."""
SCATTER: Final = 0.20
"""Without an interval: the middle half of the samples spans more than this share of the median."""
DRIFT: Final = 0.10
"""Difference between later and earlier times, as a share of the median, that counts as drift."""
MIN_DRIFT: Final = 20
"""Number of samples from which the halves of a launch are compared."""
MIN_SIDE: Final = 3
"""Minimum launches on either side of a change."""
CLOSE: Final = 0.01
"""Launches within this share of each other count as the same, whatever their order."""
MODES: Final = 0.15
"""Minimum gap between two groups of launches, as a share of the median, that makes them two modes."""
CLOCK: Final = 0.75
"""A launch's clock below this share of the fastest launch's counts as a fall."""

SIMULATION: Final = "a simulation: its figures come from a script, nothing was measured"

VERDICT_EXPLANATIONS: Final[dict[RowVerdict, tuple[str, str]]] = {
    RowVerdict.VALID: (
        "The outputs are right, the median is as precise as requested, and nothing known about the device casts doubt on it.",
        "",
    ),
    RowVerdict.SIMULATED: (
        "These figures come from a script or a simulated device: they say nothing about any device or model.",
        "measure on a real unit, such as CPU (ONNX)",
    ),
    RowVerdict.UNWITNESSED: (
        "A stranger measured it, and nobody knows how long it took: its run was not witnessed, or too much of the time is unaccounted for.",
        "measure on your own device, on one of a pool or of your list, or again on another stranger's",
    ),
    RowVerdict.MISMATCH: (
        "The outputs differ from a plain reference by more than rounding explains: the times are real, the answers may be wrong.",
        "compare with another device; if the difference is known and intended, measure with check: none (bench --check none)",
    ),
    RowVerdict.UNCHECKED: (
        "Nobody knows whether the device computed the right thing: the times are real, the outputs may not be.",
        "measure with check: reference",
    ),
    RowVerdict.FEW_RUNS: (
        "Too few launches to say how far the median may be from the median of another day.",
        f"measure with loads: {MIN_LAUNCHES} or more and at least four runs for each of them, or with precision: 2%",
    ),
    RowVerdict.THROTTLED: (
        "The device slowed itself down while it was measured: a cool device would be faster.",
        "let the device cool, improve its cooling or power supply, and measure again",
    ),
    RowVerdict.BUSY_HOST: (
        "Other programs used the device too, and the numbers show the effect or cannot rule it out: alone, the model may be faster.",
        "end the other programs, and measure again",
    ),
    RowVerdict.DRIFT: (
        "Later times differ from earlier ones: something changed during the measurement, so one number does not describe it.",
        "look at the launches in their order below; measure again, or spread the launches over more minutes (over: 2m)",
    ),
    RowVerdict.BIMODAL: (
        "The launches fall into two groups, as with two kinds of cores or two memory layouts: the median describes only one of the groups.",
        "look at both groups below; more launches show how often each occurs",
    ),
    RowVerdict.NOISY: (
        "The times scatter more than allowed: the median may be off by as much as the reason says.",
        "measure with more launches (loads:), spread over more minutes (over: 2m), or end other programs",
    ),
    RowVerdict.UNREADABLE: ("The samples in the record cannot be read, so there are no figures.", ""),
}
"""For a reader who is new to the word: what it says about the numbers, and what would help."""

Finding = tuple[RowVerdict, str]


def findings(
    observed: RecordView,
    *,
    agrees: bool | None,
    difference: str = "",
    precision: float | None = None,
    accelerator: Accelerator | None = None,
    crowded: bool = False,
    threads: int | None = None,
    simulated: bool = False,
    doubts: Sequence[str] = (),
    unrepeated: str = "",
) -> list[Finding]:
    """Each reason separately, gravest first; at least one, as `valid` has a reason too. `difference`: how the outputs differ from the
    reference. `precision`: the share of the median that was requested; None: a number of runs was. `crowded`: the run's threads wait for
    each other, since there are at least as many as cores, so waiting threads say nothing about other work. `threads`: threads that compute
    an inference on the processors; None: something else computes it. `doubts`, `unrepeated`: for a stranger's row, why its times are not
    witnessed and why its outputs are only claimed.
    """
    launches = [launch for launch in observed.launches if launch.samples]
    medians = launch_medians([launch.ordered for launch in launches])
    middle = centre_of(medians)
    times = [*_unsteady(launches, medians), *_noisy(launches, middle, precision)]
    effect = waiting_effect(launches, threads)
    figures = host_figures(launches, crowded, seen=effect is not None)
    reasons = [
        *([(RowVerdict.SIMULATED, SIMULATION)] if simulated else []),
        *((RowVerdict.UNWITNESSED, why) for why in doubts),
        *([(RowVerdict.UNCHECKED, unrepeated)] if unrepeated else []),
        *_unchecked(agrees, difference),
        *_few_runs(launches),
        *_throttled(launches, accelerator),
        *_busy(figures, effect if is_median_spoiled(effect, threads) else None, bool(times)),
        *times,
    ]
    if reasons:
        return sorted(reasons, key=lambda reason: VERDICTS_BY_SEVERITY.index(reason[0]))
    width = middle.half_width or 0.0
    why = f"checked; {count(len(launches), 'launch', 'launches')}, the median within ±{width:.1%}"
    return [(RowVerdict.VALID, why)]


def _unchecked(agrees: bool | None, difference: str) -> list[Finding]:
    if agrees is None:
        return [(RowVerdict.UNCHECKED, "outputs not compared with a reference")]
    why = "outputs differ from the reference" + (f": {difference}" if difference else "")
    return [] if agrees else [(RowVerdict.MISMATCH, why)]


def _few_runs(launches: Sequence[RecordLaunch]) -> list[Finding]:
    if len(launches) >= MIN_LAUNCHES:
        return []
    runs = count(sum(len(launch.samples) for launch in launches), "timed inference")
    why = f"{runs} in {count(len(launches), 'launch', 'launches')}, {MIN_LAUNCHES} launches are needed for an interval"
    return [(RowVerdict.FEW_RUNS, why)]


# -- the host --------------------------------------------------------------------------------------------------------------------


def _throttled(launches: Sequence[RecordLaunch], accelerator: Accelerator | None) -> list[Finding]:
    reasons = []
    times = sum(launch.host.throttles or 0 for launch in launches)
    if times:
        reasons.append(f"the processors were slowed because of heat {times} times")
    clocks = [launch.host.clock_mhz for launch in launches if launch.host.clock_mhz]
    if len(clocks) > 1 and min(clocks) < CLOCK * max(clocks):
        reasons.append(f"the clock fell from {max(clocks):.0f} to {min(clocks):.0f} MHz")
    if accelerator is not None and accelerator.throttled:
        reasons.append(f"the accelerator was slowed: {', '.join(accelerator.throttled)}")
    return [(RowVerdict.THROTTLED, why) for why in reasons]


def _busy(figures: Sequence[HostFigure], effect: float | None, unsteady: bool) -> list[Finding]:
    """`effect`: the share by which waiting lengthened the median, if that is too much. Beyond that, raised shares count if the launches are
    `unsteady`, and heavy shares always, because their effect may be hidden.
    """
    blamed = [each for each in figures if each.heavy or (unsteady and each.blamed)]
    reasons = [str(each) if unsteady or effect else f"{each}{each.unseen}" for each in blamed]
    if effect:
        reasons.insert(0, f"waiting for a processor made the median {effect:.0%} longer")
    return [(RowVerdict.BUSY_HOST, why) for why in reasons]


# -- the times ---------------------------------------------------------------------------------------------------------------------


def _unsteady(launches: Sequence[RecordLaunch], medians: Sequence[float]) -> list[Finding]:
    """A change between launches, else two modes, else launches that follow each other; and a change within the launches."""
    across = change(medians) or modes(medians) or waves(medians)
    return [finding for finding in (across, _halves(launches)) if finding]


def change(medians: Sequence[float]) -> Finding | None:
    """Whether launches split into earlier and later ones that do not overlap, and differ by more than `DRIFT`."""
    best: tuple[float, int] | None = None
    whole = median(medians) if medians else 0.0
    for at in range(MIN_SIDE, len(medians) - MIN_SIDE + 1):
        before, after = medians[:at], medians[at:]
        if max(before) < min(after) or max(after) < min(before):
            step = (median(after) - median(before)) / whole if whole else 0.0
            if abs(step) > DRIFT and (best is None or abs(step) > abs(best[0])):
                best = (step, at)
    if best is None:
        return None
    return RowVerdict.DRIFT, f"launch {best[1] + 1} and later differ by {best[0]:+.0%} from those before"


def waves(medians: Sequence[float]) -> Finding | None:
    """Launches resemble the ones before them because of a slow change, so that their interval is too narrow."""
    whole = median(medians) if medians else 0.0
    spread = (max(medians) - min(medians)) / whole if whole else 0.0
    if spread <= CLOSE or not is_autocorrelated(medians):
        return None
    return (
        RowVerdict.DRIFT,
        f"launches resemble those before them (spread {spread:.1%}): the interval may be too narrow",
    )


def modes(medians: Sequence[float]) -> Finding | None:
    """Two groups of at least two launches each, with a gap between them that is wide, and wider than twice either group."""
    ordered = sorted(medians)
    if len(ordered) < MIN_LAUNCHES:
        return None
    whole = median(ordered)
    for at in range(2, len(ordered) - 1):
        low, high = ordered[:at], ordered[at:]
        gap = high[0] - low[-1]
        if whole and gap / whole > MODES and gap > 2 * max(low[-1] - low[0], high[-1] - high[0]):
            slower = f"{len(high)} at {median(high) / 1e6:.4g} ms"
            why = f"two modes: {count(at, 'launch', 'launches')} at {median(low) / 1e6:.4g} ms, {slower}"
            return RowVerdict.BIMODAL, why
    return None


def _halves(launches: Sequence[RecordLaunch]) -> Finding | None:
    """The second half of the launches' samples compared with the first; the median over launches decides."""
    steps = []
    for launch in launches:
        samples = launch.samples
        half, whole = len(samples) // 2, median(launch.ordered)
        if len(samples) >= MIN_DRIFT and whole > 0:
            steps.append((median(samples[-half:]) - median(samples[:half])) / whole)
    step = median(steps) if steps else 0.0
    if abs(step) <= DRIFT:
        return None
    return RowVerdict.DRIFT, f"the second half of the samples differs by {step:+.0%} from the first"


def _noisy(launches: Sequence[RecordLaunch], middle: Centre, precision: float | None) -> list[Finding]:
    width, limit = middle.half_width, NOISY if precision is None else precision
    if width is not None:
        if width <= limit:
            return []
        request = f"±{limit:.1%} {'is the limit' if precision is None else 'was requested'}"
        return [(RowVerdict.NOISY, f"the median is known within ±{width:.1%}, {request}")]
    ordered = sorted(sample for launch in launches for sample in launch.samples)
    if ordered and not middle.median:
        return [(RowVerdict.NOISY, "the median is 0, but every inference takes some time")]
    whole = median(ordered) if len(ordered) >= MIN_LAUNCHES else 0.0
    scatter = (nearest_rank(ordered, 75) - nearest_rank(ordered, 25)) / whole if whole > 0 else 0.0
    if scatter <= SCATTER:
        return []
    return [(RowVerdict.NOISY, f"the middle half of the samples spans {scatter:.0%} of the median")]
