"""The recorded program: `python -m tests.durability.recorded SCENARIO ROOT --tasks N --seed N`, with the library of `shim.c` preloaded.

Each scenario has homes below ROOT, and records each promise before it goes out.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import structlog

from tests.durability import adoption_run, api_run, campaign_run, experiment_run, gate_run, restore_run
from tests.durability.promises import Promises

HANGS_S: Final = 300.0
"""Seconds of the wall clock after which the process reports where each thread is, and ends."""
Scenario = Callable[[Path, Path, Promises, int, int], None]
"""(folder of the homes, a folder that is not recorded, promises, number of tasks, seed)"""
MAKE: Final[Mapping[str, Scenario]] = {
    "campaign": campaign_run.make,
    "adoption": adoption_run.make,
    "restore": restore_run.make,
    "api": api_run.make,
    "gate": gate_run.make,
    "experiment": experiment_run.make,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.durability.recorded")
    parser.add_argument("scenario", choices=MAKE)
    parser.add_argument("root", type=Path)
    parser.add_argument("--tasks", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    faulthandler.dump_traceback_later(HANGS_S, exit=True)
    elsewhere = given.root.with_name("elsewhere")
    elsewhere.mkdir()
    MAKE[given.scenario](given.root, elsewhere, Promises(given.root), given.tasks, given.seed)


if __name__ == "__main__":
    main()
