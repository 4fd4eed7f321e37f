"""The index with 10² to 10⁶ nodes, on virtual time: what publishing, finding and being there cost.

    python -m benchmarks.network.scale                                   # at rest, 100 to 10,000 nodes: minutes
    python -m benchmarks.network.scale --nodes 1000000 --scenario dead   # one run
    python -m benchmarks.network.scale --out scale.jsonl                 # figures to draw, one line for each run

The code under test is the product's index, imported with an event heap in trio's place (`heap`, `product`). Up to 300 nodes all are full.
Of more, those that publish and read are full, and the others light (`light`): their server and store are the product's, whom they know
and what light publishers stored follow rules. Round trips come from a matrix of seven places, connections cost what libp2p's do. Each
device has a processor and up to four units more, memory, perhaps a GPU, and a label shared with nine others: 5 to 9 attributes.

Scenarios: `rest`; `dead`, a fifth dies at once, a second before the queries; `churn`, half of all leave within an hour and others come,
for half an hour; `liars`, a fifth collude; `crowd`, as many as there are, 10,000 at most, join within a minute; `cut`, two halves cannot
reach each other for ten minutes, and the queries come a minute after.

publish: calls of one node until `publish` returns, and until its regions are learned three minutes later. Refresh: for each 450 s. busiest:
calls that the busiest node got for each query, where every query is for what everybody has.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import structlog

from benchmarks.network.scale.scenarios import SCENARIOS, Outcome, measure


def show(outcome: Outcome) -> None:
    """Two lines."""
    print(
        f"{outcome.nodes:>8} {outcome.scenario:7} publish {outcome.publish_calls:6.1f} calls {outcome.publish_s:5.1f} s,"
        f" settled {outcome.settled_calls:6.1f} ({outcome.stores:5.1f} stores); refresh {outcome.refresh_calls:6.1f};"
        f" at rest {outcome.calls_per_s:6.3f} calls/s {outcome.bytes_per_s:6.0f} B/s; busiest {outcome.busiest:5.2f};"
        f" CPU {outcome.cpu_s:6.1f} s"
    )
    if outcome.crowd_calls:
        print(
            f"{'':8} {'':7} newcomers {outcome.crowd_calls:5.1f} calls, {outcome.crowd_publish_s:4.1f} s to publish,"
            f" {outcome.gate_calls:5.2f} calls at the busiest gate"
        )
    for kind, query in outcome.queries.items():
        print(
            f"{'':8} {'':7} {kind:7} found {100 * query.found:6.2f} %, {query.calls:6.1f} calls,"
            f" p50 {query.p50_ms:6.0f} ms, p95 {query.p95_ms:6.0f} ms",
            flush=True,
        )


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, action="append", help="100, 1000 and 10000 by default")
    parser.add_argument("--scenario", choices=SCENARIOS, action="append", help="rest by default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a file to which each run adds a line of JSON")
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    for count in given.nodes or (100, 1_000, 10_000):
        for scenario in given.scenario or ("rest",):
            outcome = measure(count, scenario, given.seed)
            show(outcome)
            if given.out is not None:
                with given.out.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(asdict(outcome)) + "\n")


if __name__ == "__main__":
    main()
