"""What not every version of a worker supports: kinds of tasks, and messages it answers. Adverts list these features (`features`).

A task of such a kind has a clause for it. A worker ends the link when it receives a message it does not know, so it is sent none.

A worker that knows neither the kind nor the attribute refuses the task because of that clause, whatever made its scheduler ask.
"""

from __future__ import annotations

from typing import Final

from protocol.values.advert import Advert
from protocol.values.requirement import Clause, Op

UNITS_IN_TURNS: Final = "units-in-turns"
"""Models on several units of a device take turns (`Task.beside_units`)."""
FORGET: Final = "forget"
"""The worker forgets deleted campaigns (`protocol.messages.forget`)."""
FEATURES: Final = (UNITS_IN_TURNS, FORGET)
"""All features that a worker of this version has."""
SIMULATED_FEATURES: Final = (FORGET,)
"""The features of a worker that follows a script."""


def needs(feature: str) -> Clause:
    """The clause that a device must meet to run such tasks."""
    return Clause(attribute="features", op=Op.HAS, value=feature)


def forgets(advert: Advert) -> bool:
    """Whether the worker can be asked to forget a campaign."""
    return FORGET in (advert.features or ())
