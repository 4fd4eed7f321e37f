"""Which of several sittings a task is: the same measurement on the same device, repeated at another time."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from protocol.wire.base import Message, Seconds

MAX_SITTINGS: Final = 64


class Sitting(Message):
    """A task's place among the sittings of one cell. Each later sitting begins some time after the previous one has ended."""

    number: Annotated[int, Field(ge=1, le=MAX_SITTINGS)]
    """Counted from 1."""
    of: Annotated[int, Field(ge=2, le=MAX_SITTINGS)]
    step: Annotated[int, Field(ge=1, le=10_000)] = 1
    """The difference between the numbers of successive sittings' tasks."""
    apart_s: Seconds
    """Least time from the end of the previous sitting to the beginning of this one."""

    def task(self, own: str, number: int) -> str:
        """The id of the task of another sitting of the cell; `own`: the id of this sitting's task."""
        campaign, _, task = own.rpartition("/")
        return f"{campaign}/{int(task) + (number - self.number) * self.step}" if task.isdecimal() else ""

    def numbers(self, own: int) -> tuple[int, ...]:
        """The numbers of the tasks of all sittings of the cell; `own`: the number of this sitting's task."""
        first = own - (self.number - 1) * self.step
        return tuple(range(first, first + self.of * self.step, self.step))
