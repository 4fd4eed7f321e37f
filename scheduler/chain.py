"""The events of a campaign as a chain: each carries a hash over itself and the one before. Pure.

    hash 0 = ""        hash n = sha256(hash n-1 as bytes, then event n as JSON)

Whoever notes the last hash can tell later that nothing before it was changed, left out or put in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.stored import Event


def chained(before: str, campaign: str, seq: int, at: float, name: str, task: str | None, fields: str) -> str:
    """The hash of an event, in hexadecimal; `before`: that of the one before it, empty for the first. `fields`: a JSON object."""
    body = json.dumps(
        [campaign, seq, at, name, task, json.loads(fields)],
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=True,
    )
    return hashlib.sha256(bytes.fromhex(before) + body.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Broken:
    """The first link that does not hold."""

    seq: int
    why: str


def check_chain(events: Iterable[Event], count: tuple[int, int]) -> Broken | None:
    """None when all events are there and each is as it was written. `count`: how many were written, and the highest number there is."""
    written, highest = count
    before, expected = "", 1
    for event in events:
        if event.seq > highest:
            break  # written since we counted
        if event.seq != expected:
            return Broken(expected, f"event {expected} is missing")
        told = json.dumps(event.fields)
        if not event.hash:
            return Broken(expected, f"event {expected} carries no hash")
        if chained(before, event.campaign, event.seq, event.at, event.name, event.task, told) != event.hash:
            return Broken(expected, f"event {expected} is not as it was written")
        before, expected = event.hash, expected + 1
    if expected <= max(written, highest):
        return Broken(expected, f"event {expected} is missing")
    if highest > written:
        return Broken(written + 1, f"event {written + 1} was put in")
    return None
