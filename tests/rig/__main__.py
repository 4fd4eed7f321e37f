"""The standing attack rig: `make rig`.

python -m tests.rig                       every attack, each with an honest campaign beside it; exit code 1 names those that did not hold
python -m tests.rig --short               the few that `make test` runs
python -m tests.rig --only page-bomb …    these
python -m tests.rig --list                what there is, and the row of the reference that each repeats
python -m tests.rig --json --out FILE     the figures, to be compared with another run's
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Final

from tests.rig.catalogue import ATTACKS
from tests.rig.covered import COVERED
from tests.rig.rig import TRIES, Rig
from tests.rig.verdict import HEADINGS, Result, line, shorten, table

OUT: Final = Path("build/rig.json")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.rig",
        description="Attacks on a real swarm.",
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", choices=list(ATTACKS), help="these attacks alone"
    )
    parser.add_argument("--short", action="store_true", help="the few that matter most")
    parser.add_argument("--list", action="store_true", help="what there is")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--out", type=Path, default=OUT, help=f"where the figures go as JSON [{OUT}]")
    parser.add_argument(
        "--tries", type=int, default=TRIES, help=f"of an attack that only passes a limit of time [{TRIES}]"
    )
    options = parser.parse_args()
    if options.list:
        rows = [
            ("attack", "row", "what it does"),
            *((each.name, each.shows, each.what) for each in ATTACKS.values()),
        ]
        print(table(rows))
        print("\nRows of the threat table that an existing test shows:\n")
        print(
            table([("row", "shown by"), *((row, name) for row, names in COVERED.items() for name in names)])
        )
        return 0
    chosen = [
        each
        for each in ATTACKS.values()
        if (each.name in options.only if options.only else each.short or not options.short)
    ]
    results: list[Result] = []
    began = time.monotonic()
    with Rig(
        lambda words: print(words, file=sys.stderr, flush=True), options.tries, brief=options.short
    ) as rig:
        for attack in chosen:
            at = time.monotonic()
            results.append(rig.run(attack))
            if not options.json:
                tell(results[-1], time.monotonic() - at)
            _write(options.out, results)
    failed = [result for result in results if not result.held]
    if options.json:
        print(options.out.read_text("utf-8"))
    else:
        print("\n" + table([HEADINGS, *map(line, results)]))
        for result in failed:
            print(f"{result.name}: " + "; ".join(shorten(result.failures, 6)))
        print(
            f"\n{len(results) - len(failed)} of {len(results)} held, {time.monotonic() - began:.0f} s; figures in {options.out}"
        )
    return 1 if failed else 0


def tell(result: Result, seconds: float) -> None:
    """Print one line when an attack ends, with the failures and what the attackers saw."""
    print(
        f"{result.name}: {result.words} ({seconds:.0f} s) {'; '.join(shorten(result.failures))}", flush=True
    )
    print(f"    {json.dumps(dict(result.facts))}", flush=True)


def _write(path: Path, results: list[Result]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {
        "load": os.getloadavg()[0],
        "processors": os.cpu_count(),
        "attacks": [result.to_json() for result in results],
    }
    path.write_text(json.dumps(plain, indent=1), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
