"""Looks for peers as `peers` does, on request: for `homes.Looker`, so that a look does not have to start a process.

Each line of standard input is a request with the gates' addresses, separated by blanks. The answer is a line of JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from functools import partial

import trio

from protocol.errors import SarkError
from protocol.values.requirement import Requirement
from scheduler.output.fleet import observe_fleet
from swarm.base.logs import set_up_logs


def look(gates: list[str]) -> dict[str, object]:
    """The devices found through these gates: `peers` by name, and `error` where no gate answers."""
    try:
        observed = trio.run(partial(observe_fleet, gates, Requirement()))
    except SarkError as error:
        return {"error": error.what, "peers": {}}
    peers = {
        each.advert.name: {
            "answers": each.pong is not None,
            "why": each.error,
            "addresses": each.advert.addresses,
            "path": None if each.path is None else asdict(each.path),
        }
        for each in observed
    }
    return {"error": "", "peers": peers}


set_up_logs(sys.stderr)
for line in sys.stdin:
    sys.stdout.write(json.dumps(look(line.split())) + "\n")
    sys.stdout.flush()
