"""How long a comparison of models that take turns may go on: what the driver makes, what its task's limits have to cover."""

from __future__ import annotations

from typing import Final

UNHURRIED: Final = 40
"""Launches of a comparison that are made however long they take."""
HURRIED_S: Final = 180.0
"""A launch after those is made only where it is likely to end within so many seconds of the first's beginning."""
