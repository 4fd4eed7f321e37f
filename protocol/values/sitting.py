"""Which of several sittings a task is: the same measured again on the same device, at another time."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from protocol.wire.base import Message, Seconds

MAX_SITTINGS: Final = 64


class Sitting(Message):
    """Its place among the sittings of one cell. Those after the first begin some time after the one before has ended."""

    number: Annotated[int, Field(ge=1, le=MAX_SITTINGS)]
    """From 1."""
    of: Annotated[int, Field(ge=2, le=MAX_SITTINGS)]
    step: Annotated[int, Field(ge=1, le=10_000)] = 1
    """From the number of a sitting's task to that of the next one's."""
    apart_s: Seconds
    """From the end of the one before to its own beginning, at least."""

    def task(self, own: str, number: int) -> str:
        """Id of the task of another sitting of the cell; `own`: of this one's."""
        campaign, _, task = own.rpartition("/")
        return f"{campaign}/{int(task) + (number - self.number) * self.step}" if task.isdecimal() else ""

    def numbers(self, own: int) -> tuple[int, ...]:
        """Of the tasks of all sittings of the cell; `own`: of this one's."""
        first = own - (self.number - 1) * self.step
        return tuple(range(first, first + self.of * self.step, self.step))
