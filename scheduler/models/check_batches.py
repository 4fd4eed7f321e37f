"""Checks the batches of a campaign against a local ONNX file, so that a campaign that cannot run is refused before a device is asked.

Refuses only what is sure; the rest is for the driver, which knows more of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from protocol.formats.onnx import read_inputs
from scheduler.campaign.model import ModelEntry
from swarm.base.text import safe_text


def check_batches(entry: ModelEntry, path: Path, batches: Sequence[int | None]) -> None:
    """Raise `CampaignError` for a batch that the model at `path` surely cannot have. Blocking; reads little of the file."""
    fixed_batches = [batch for batch in batches if batch is not None]
    inputs = read_inputs(path) if fixed_batches else ()
    if not inputs:
        return
    label = safe_text(entry.label, 60)
    if entry.batch_dim is not None:
        known = [key for one in inputs for key in one.keys()]  # noqa: SIM118  (no mapping)
        if entry.batch_dim not in known:
            named = [key for one in inputs for key in one.shape if isinstance(key, str)] or known
            there = ", ".join(safe_text(key, 40) for key in dict.fromkeys(named[:8])) or "none"
            raise entry.error(
                f"model {label!r}: batch_dim {safe_text(entry.batch_dim, 60)!r} is no dynamic dimension of its inputs",
                f"there are: {there}",
            )
        return
    if any(not isinstance(size, int) for one in inputs for size in one.shape[:1]) or any(
        len(one.shape) == 3 and one.shape[1] is None for one in inputs
    ):
        return
    firsts = {one.name: one.shape[0] for one in inputs if len(one.shape) > 1}
    other = [batch for batch in fixed_batches if set(firsts.values()) != {batch}]
    if other:
        text = ", ".join(
            f"{safe_text(name, 40)} begins with {size}" for name, size in list(firsts.items())[:4]
        )
        sizes = set(firsts.values())
        hint = "export it with a dynamic first dimension"
        if len(sizes) == 1:
            hint += f", or give this model batch: {sorted(map(str, sizes))}".replace("'", "")
        raise entry.error(
            f"model {label!r} has a fixed batch and cannot run with one of {other[0]}"
            + (f" ({text})" if text else ""),
            hint,
        )
