"""The events of a campaign as a chain: each carries a hash over itself and the one before. Pure.

    hash 0 = ""        hash n = sha256(hash n-1 as bytes, then event n as JSON)

There is no key in it: whoever can write to the store can write the whole chain anew. So a chain that holds shows that no event was
damaged or changed alone; and whoever noted the last hash elsewhere can tell later that nothing up to it was changed, left out or put in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.store.rows import EventRow


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
class BrokenChain:
    """The first link that does not hold."""

    seq: int
    why: str


def check_chain(events: Iterable[EventRow], count: tuple[int, int], noted: str = "") -> BrokenChain | None:
    """None when all events are there and each is as it was written. `count`: how many were written, and the highest number there is;
    `noted`: a hash that one of them must have."""
    written, highest = count
    found = not noted
    before, expected = "", 1
    for event in events:
        if event.seq > highest:
            break  # written since we counted
        if event.seq != expected:
            return BrokenChain(expected, f"event {expected} is missing")
        told = json.dumps(event.fields)
        if not event.hash:
            return BrokenChain(expected, f"event {expected} carries no hash")
        if chained(before, event.campaign, event.seq, event.at, event.name, event.task, told) != event.hash:
            return BrokenChain(expected, f"event {expected} is not as it was written")
        before, expected = event.hash, expected + 1
        found = found or event.hash == noted
    if expected <= max(written, highest):
        return BrokenChain(expected, f"event {expected} is missing")
    if highest > written:
        return BrokenChain(written + 1, f"event {written + 1} was put in")
    if not found:
        return BrokenChain(highest, "no event up to here has the hash that was noted: they were written anew")
    return None
