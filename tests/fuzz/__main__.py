"""Odd frames of every message of every family, through the decoders and over real links.

python -m tests.fuzz                               36,000 through the decoders, 20,000 to a real gate and two real workers; minutes
python -m tests.fuzz --frames 2000 --live 0        quicker
python -m tests.fuzz --seed 7                      the same frames again

Exit code 1: an exception other than `RemoteProtocolError`, a traceback or an error in a log, a process that ended, or an honest call
without an answer.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

import trio

from swarm.base.home import Home
from swarm.net.identity import load_or_create
from tests.fuzz.decoding import fuzz_decoders
from tests.fuzz.live import fuzz_nodes
from tests.fuzz.mutations import examples
from tests.rig.swarm import SCHEDULER, WORKERS, Swarm, a_swarm

FRAMES: Final = 36_000
LIVE: Final = 20_000
ERRORS: Final = ("Traceback", '"level": "error"', '"level": "critical"', "Exception")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Odd frames.")
    parser.add_argument("--frames", type=int, default=FRAMES, help=f"through the decoders [{FRAMES}]")
    parser.add_argument("--live", type=int, default=LIVE, help=f"over real links [{LIVE}]")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    kinds = {(example.protocol, example.message.type) for example in examples()}
    print(
        f"{len(kinds)} messages of {len({protocol for protocol, _ in kinds})} families, seed {options.seed}"
    )
    began = time.monotonic()
    outcomes, strays = fuzz_decoders(rng, options.frames)
    tell("decoders", options.frames, outcomes, time.monotonic() - began)
    if options.live:
        with tempfile.TemporaryDirectory(prefix="sark-fuzz-") as folder, a_swarm(Path(folder)) as swarm:
            began = time.monotonic()
            sent = trio.run(fuzz_swarm, swarm, rng, options.live)
            tell("live", sent["sent"], sent, time.monotonic() - began)
            strays += troubles(swarm)
            if sent["sent"] < options.live:
                strays.append(f"{sent['sent']} frames were sent, {options.live} were to be")
    for stray in strays[:20]:
        print(stray)
    print(f"{len(strays)} stray exceptions")
    return 1 if strays else 0


def tell(what: str, count: int, outcomes: Counter[str], took_s: float) -> None:
    words = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.most_common())
    print(f"{what}: {count} frames in {took_s:.0f} s: {words}", flush=True)


async def fuzz_swarm(swarm: Swarm, rng: random.Random, count: int) -> Counter[str]:
    nodes = (swarm.target.gate, *swarm.target.workers)
    served = load_or_create(Home.at(swarm.lab.folder / SCHEDULER).key("scheduler"))
    return await fuzz_nodes(rng, nodes, count, [served])


def troubles(swarm: Swarm) -> list[str]:
    """Errors that the nodes logged."""
    found = []
    for name in ("gate", *WORKERS):
        log = swarm.lab.folder / name / "output.log"
        lines = log.read_text("utf-8", errors="replace").splitlines() if log.exists() else []
        found += [f"{name}: {line[:300]}" for line in lines if any(word in line for word in ERRORS)]
        if swarm.lab.running[name].poll() is not None:
            found.append(f"{name} has ended")
    calls = [json.loads(line) for line in list(swarm.honest.lines)[-4:]]
    if not any(ok for *_, ok in calls):
        found.append(f"honest calls are not answered: {calls}")
    return found


if __name__ == "__main__":
    sys.exit(main())
