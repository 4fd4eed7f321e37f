"""What not every version of a worker does: kinds of tasks, and messages that it answers. Adverts list it (`features`).

A task of such a kind has a clause for it. A worker ends the link when it is sent a message that it does not know, so it is not sent one.

A worker that knows neither the kind nor the attribute refuses the task by that clause, however its scheduler came to ask it.
"""

from __future__ import annotations

from typing import Final

from protocol.values.advert import Advert
from protocol.values.requirement import Clause, Op

UNITS_IN_TURNS: Final = "units-in-turns"
"""Models on several units of a device take turns (`Task.beside_units`)."""
FORGET: Final = "forget"
"""It forgets deleted campaigns (`protocol.messages.forget`)."""
FEATURES: Final = (UNITS_IN_TURNS, FORGET)
"""All that a worker of this version does."""
SIMULATED_FEATURES: Final = (FORGET,)
"""… if it follows a script."""


def needs(feature: str) -> Clause:
    """Of a device that runs such tasks."""
    return Clause(attribute="features", op=Op.HAS, value=feature)


def forgets(advert: Advert) -> bool:
    """Whether the worker can be asked to forget a campaign."""
    return FORGET in (advert.features or ())
