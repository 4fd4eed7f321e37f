"""Where a model's operators really ran: one profiled inference, apart from the timed ones.

A session on a GPU moves unsupported operators to the CPU, perhaps all of them, without changing its list of providers. Only the runtime's
profile shows it.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from drivers.contract.base import DriverError
from drivers.local.model import RanOn
from drivers.onnx.units import UNITS

COPY: Final = "Memcpy"
"""Operators that the runtime inserts to copy values between devices."""


def nodes_by_provider(profile: str) -> Counter[str]:
    """Operators that ran on each provider, from the text of a profile. Empty if it is unusable."""
    try:
        events = json.loads(profile)
    except (ValueError, RecursionError):
        return Counter()
    providers: dict[str, str] = {}
    for event in events if isinstance(events, list) else []:
        args = event.get("args") if isinstance(event, dict) and event.get("cat") == "Node" else None
        if not isinstance(args, dict) or str(args.get("op_name", "")).startswith(COPY):
            continue
        if isinstance(provider := args.get("provider"), str) and provider:
            providers[str(event.get("name"))] = provider
    return Counter(providers.values())


def unit_that_ran(unit: str, provider: str, live: Sequence[str], nodes: Mapping[str, int]) -> RanOn:
    """The unit that ran the model: another one than `unit` if no operator ran on its provider.

    `provider`: the unit's provider; `live`: the session's providers; `nodes`: operators by provider.
    """
    if not nodes:
        return RanOn(unit, tuple(live), ("the runtime does not report where the operators ran",))
    order = sorted(nodes, key=lambda name: (name != provider, -nodes[name], name))
    if provider not in nodes:
        others = (one.unit for one in UNITS if order[0] in one.names)
        return RanOn(next(others, order[0]), tuple(order))
    total = sum(nodes.values())
    notes = tuple(f"{nodes[name]} of {total} operators ran on {name}" for name in order[1:])
    return RanOn(unit, tuple(order), notes)


def profile(infer: Callable[[Any], Any], options: Any) -> Counter[str]:
    """Operators by provider, of one inference in a session of its own; empty if that fails, as with too little memory for two.

    `infer` opens a session with `options`, runs it once and returns it.
    """
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder, "profile"))
        try:
            session = infer(options)
        except DriverError:
            return Counter()
        try:
            return nodes_by_provider(Path(session.end_profiling()).read_text("utf-8", "replace"))
        except OSError:
            return Counter()
