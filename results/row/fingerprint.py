"""What a measurement was one of, as one hash: rows with the same fingerprint were made alike, and nothing else may be averaged blindly.

Over the device, its system and node, the runtime and its unit, threads, shapes, element types, seed and steps, and the model.
"""

from __future__ import annotations

import hashlib
from typing import Any

from protocol.values.record import Record
from protocol.values.task import Task
from protocol.wire.codec import pack


def fingerprint(task: Task, record: Record) -> str:
    """64 hexadecimal digits; empty for a run that never came to run anything."""
    ran = record.ran
    if ran is None:
        return ""
    facts: dict[str, Any] = {
        "device": record.device.to_wire(),
        "model": record.model_sha256,
        "unit": ran.unit,
        "driver": ran.driver,
        "runtime": ran.runtime,
        "providers": list(ran.providers),
        "threads": ran.threads,
        "shapes": {name: list(ran.shapes[name]) for name in sorted(ran.shapes)},
        "dtypes": {name: ran.dtypes[name] for name in sorted(ran.dtypes)},
        "seed": ran.seed,
        "warmup": task.measure.warmup,
        "pre": [step.to_wire() for step in task.measure.pre],
        "post": [step.to_wire() for step in task.measure.post],
    }
    return hashlib.sha256(pack(facts)).hexdigest()
