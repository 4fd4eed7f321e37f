"""The sample models of a driver, made in a child. Calibration learns from them what the driver's units need."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterable
from typing import Final

from drivers.contract.base import Crashed, Limits, SampleModel, WorkOrder
from drivers.launch.events import Reply, replies
from drivers.launch.launch import Zygote
from drivers.measure.stopping import MeasureJob

LIMITS: Final = Limits(load_s=30, run_s=30)
MOST: Final = 4
BROKE: Final = "it broke its contract: "


def sample_models(zygote: Zygote) -> dict[str, bytes]:
    """Content of the samples by file name, from small to large; empty if the driver makes none (blocking). Raises `DriverError`."""
    running = zygote.launch(WorkOrder(model="", unit=""), LIMITS, MeasureJob.SAMPLES)
    return contents_of(replies(running, LIMITS))


def contents_of(replies: Iterable[Reply]) -> dict[str, bytes]:
    """Content by file name. Raises `Crashed` for a reply that is not a sample."""
    made: dict[str, bytes] = {}
    for reply in replies:
        if not isinstance(reply, SampleModel):
            raise Crashed(f"{BROKE}it sent a {type(reply).__name__} instead of a sample")
        if len(made) == MOST:
            raise Crashed(f"{BROKE}it sent more than {MOST} samples")
        try:
            made[reply.name] = b64decode(reply.content, validate=True)
        except binascii.Error as why:
            raise Crashed(f"{BROKE}sample {reply.name} is not base64: {why}") from why
    return made
