"""How often is a comparison in turns right? A simulation: the product's verdicts on launches' log ratios from known distributions.

    python benchmarks/measuring/rounds.py [--trials 2000]

Noise: the deviation of one launch's ratio by wall and by CPU time. 10 % and 5.6 % were measured for 24 rounds of blocks of 6 ms on a 2-core
host with a load of 2.5 to 11 (run 1 of four), 2 % and 1 % on the same host when calm. `normal`, and `heavy`: a fifth of the launches five
times as noisy as the others. `alike`: both kinds of time deviate together; `apart`: independently, the worst case for errors.

misjudged    A compared with itself is called FASTER or SLOWER (at most 1 %)
covers       both intervals hold the true value when the comparison ends (at least 93 %)
5 %, 2 %     SLOWER if B takes that much longer, and the mean number of launches until then
Below it, for one kind of time: how often intervals of each look hold the true value, and their median half width, by four methods. The
studentised bootstrap resamples launches and divides by each resample's own deviation.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Callable, Sequence

from protocol.formats.turns import LOOKS
from results.row.comparison import Comparison, ComparisonVerdict
from results.row.order import Interval, interval_rank, signed_rank_interval, t_interval
from results.row.rounds import alpha_at, compare_logs

NOISES = {"busiest": (0.10, 0.056), "busy": (0.03, 0.03), "calm": (0.02, 0.01), "quiet": (0.005, 0.003)}
DRAWS = 2000


def worse(chance: random.Random, kind: str) -> float:
    """The factor that multiplies a launch's noise; the deviation over all launches is about 1 for either kind."""
    if kind == "normal":
        return 1.0
    return 2.13 if chance.random() < 0.2 else 0.43


def ended(
    chance: random.Random, step: float, noise: tuple[float, float], kind: str, alike: bool
) -> Comparison:
    """The comparison at the look that ends it."""
    logs: tuple[list[float], list[float]] = ([], [])
    for look in LOOKS:
        while len(logs[0]) < look:
            by, one, other = worse(chance, kind), chance.gauss(0, 1), chance.gauss(0, 1)
            logs[0].append(math.log(step) + by * noise[0] * one)
            logs[1].append(math.log(step) + by * noise[1] * (one if alike else other))
        result = compare_logs(*logs)
        if result.verdict is not ComparisonVerdict.AMBIGUOUS or look == LOOKS[-1]:
            return result
    raise AssertionError("there are no looks")


def covers(result: Comparison, step: float) -> bool:
    """Whether both intervals hold the true value."""
    assert result.low is not None
    assert result.high is not None
    assert result.cpu is not None
    return result.low <= step <= result.high and result.cpu.low <= step <= result.cpu.high


def bootstrap(logs: Sequence[float], alpha: float, chance: random.Random) -> Interval:
    """The studentised bootstrap of the mean."""
    n, middle, deviation = len(logs), statistics.fmean(logs), statistics.stdev(logs)
    ts = []
    for _ in range(DRAWS):
        drawn = chance.choices(logs, k=n)
        mean = sum(drawn) / n
        spread = math.sqrt(sum((value - mean) ** 2 for value in drawn) / (n - 1))
        ts.append((mean - middle) / spread if spread else 0.0)
    ts.sort()
    at = int(DRAWS * alpha / 2)
    return middle - ts[-1 - at] * deviation, middle - ts[at] * deviation


def ranks(logs: Sequence[float], alpha: float) -> Interval:
    """Order statistics about the median."""
    ordered, rank = sorted(logs), interval_rank(len(logs), alpha)
    return ordered[rank - 1], ordered[-rank]


def verdicts(trials: int) -> None:
    """Print the first table."""
    print(f"{'noise':<28}{'misjudged':>11}{'covers':>8}{'5 %':>8}{'after':>7}{'2 %':>8}{'after':>7}")
    for name, noise in NOISES.items():
        for kind in ("normal", "heavy"):
            for alike in (True, False):
                cells = []
                held = 0
                for step in (1.0, 1.05, 1.02):
                    chance = random.Random(f"{name} {kind} {alike} {step}")
                    results = [ended(chance, step, noise, kind, alike) for _ in range(trials)]
                    held += sum(covers(each, step) for each in results)
                    wrong = {ComparisonVerdict.FASTER, ComparisonVerdict.SLOWER}
                    found = sum(
                        each.verdict in (wrong if step == 1 else {ComparisonVerdict.SLOWER})
                        for each in results
                    )
                    cells.append((found / trials, statistics.fmean(each.launches[0] for each in results)))
                label = f"{name}, {kind}, {'alike' if alike else 'apart'}"
                (misjudged, _), (five, after5), (two, after2) = cells
                print(
                    f"{label:<28}{misjudged:>11.2%}{held / trials / 3:>8.1%}{five:>8.1%}{after5:>7.0f}{two:>8.1%}{after2:>7.0f}",
                    flush=True,
                )


def methods(trials: int) -> None:
    """Print the second table."""
    boots = random.Random(0)
    by_name: dict[str, Callable[[Sequence[float], float], Interval | None]] = {
        "Student": t_interval,
        "signed ranks": signed_rank_interval,
        "order statistics": ranks,
        "studentised bootstrap": lambda logs, alpha: bootstrap(logs, alpha, boots),
    }
    print(f"\n{'deviation 5.6 %':<32}" + "".join(f"{look:>18}" for look in LOOKS))
    for kind in ("normal", "heavy"):
        for name, method in by_name.items():
            cells = []
            for look in LOOKS:
                chance = random.Random(f"{kind} {look}")
                alpha = alpha_at(look)
                ends = [
                    method([worse(chance, kind) * chance.gauss(0, 0.056) for _ in range(look)], alpha)
                    for _ in range(trials if "boot" not in name else max(trials // 20, 50))
                ]
                known = [each for each in ends if each is not None]
                if not known:
                    cells.append(f"{'-':>18}")
                    continue
                held = sum(low <= 0 <= high for low, high in known) / len(known)
                half = statistics.median((high - low) / 2 for low, high in known)
                cells.append(f"{held:>9.1%} ±{half:>6.1%} ")
            print(f"{name + ', ' + kind:<32}" + "".join(cells), flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=2000)
    trials = parser.parse_args().trials
    verdicts(trials)
    methods(trials)


if __name__ == "__main__":
    main()
