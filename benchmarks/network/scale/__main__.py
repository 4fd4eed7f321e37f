"""The index with 10² to 10⁶ nodes, on virtual time: the cost of publishing, finding and being present.

    python -m benchmarks.network.scale                                   # at rest, 100 to 10,000 nodes: minutes
    python -m benchmarks.network.scale --nodes 1000000 --scenario dead   # one run
    python -m benchmarks.network.scale --out scale.jsonl                 # figures to draw, one line for each run

The code under test is the product's index, imported with an event heap in place of trio (`heap`, `product`). With up to 300 nodes, all are
full. With more, only publishers and readers are full, and the others are light (`light`): their server and store are the product's, but
rules determine which nodes they know and what light publishers stored. Round trips come from a matrix of seven places; connections cost as
much as libp2p's. Each device has a processor and up to four more units, memory, perhaps a GPU, and a label shared with nine others: 5 to 9
attributes.

Scenarios: `rest`; `dead`: a fifth of the nodes die at once, a second before the queries; `churn`: for half an hour, nodes leave at a rate
of half per hour and others join; `liars`: a fifth collude; `crowd`: as many nodes as there are, at most 10,000, join within a minute;
`cut`: two halves cannot reach each other for ten minutes, and the queries follow a minute later.

publish: calls of one node until `publish` returns, and until it has learned its regions three minutes later. Refresh: calls per 450 s.
busiest: calls that the busiest node received per query, if every query is for something that all devices have.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import structlog

from benchmarks.network.scale.scenarios import SCENARIOS, Outcome, measure


def show(outcome: Outcome) -> None:
    """Print two lines."""
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
    """Measure, print and write the results."""
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
