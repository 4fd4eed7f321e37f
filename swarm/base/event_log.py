"""Where pure code records events, without a dependency on a logging library."""

from __future__ import annotations

from typing import Protocol


class EventLog(Protocol):
    """A logger that takes an event's name and its fields, such as structlog's."""

    def debug(self, event: str, **fields: object) -> object: ...
    def info(self, event: str, **fields: object) -> object: ...
    def warning(self, event: str, **fields: object) -> object: ...
