"""How a sustained run proceeds: what the driver does, what its task's limits have to cover, what its record may hold."""

from __future__ import annotations

from typing import Final

MAX_SUSTAIN_S: Final = 4 * 3600.0
MIN_SUSTAIN_S: Final = 5.0
MAX_STRETCHES: Final = 2000
"""Most stretches of a sustained run, which are the blocks of its timing."""
MAX_SUSTAINED: Final = 200_000
"""Most samples of a sustained run; for short inferences, each sample is the mean of several."""
MAX_PROBES: Final = 8
MAX_PROBE_SAMPLES: Final = 2000
RECOVERY_SHARE: Final = 0.1
MAX_RECOVERY_S: Final = 60.0
ZERO_C_MK: Final = 273_150
"""Thousandths of a kelvin at 0 °C."""


def recovery_s(sustain_s: float) -> float:
    """How long the device rests after a sustained run, up to the last probe."""
    return min(MAX_RECOVERY_S, RECOVERY_SHARE * sustain_s)


def with_sustained(run_s: float, sustain_s: float | None) -> float:
    """The limit of a run that may take `run_s` in addition to the sustained time and the rest after it."""
    return run_s if sustain_s is None else run_s + sustain_s + recovery_s(sustain_s)
