"""The process of an attack: `python -m tests.rig.attacker NAME TARGET`. Prints `up` once the attack is under way, and its facts as JSON
when its standard input ends.

It runs at a low priority. A real attacker has its own processor, so an attack must not seem strong here because it takes processor time
from the honest nodes.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys

import structlog
import trio

from tests.rig.attack import Target
from tests.rig.catalogue import ATTACKS

NICE = 10


async def _attack(name: str, target: Target) -> None:
    attack = ATTACKS[name]
    async with attack.start(target) as facts:
        print("up", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        print(json.dumps(facts), flush=True)
        os._exit(0)  # real attackers do not close their connections one by one either


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.CRITICAL)
    os.nice(NICE)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    trio.run(_attack, sys.argv[1], Target.read(sys.argv[2]))


if __name__ == "__main__":
    main()
