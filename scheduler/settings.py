"""What can be set for the scheduler of a home."""

from __future__ import annotations

from typing import ClassVar

from swarm.settings import RoleSettings


class SchedulerSettings(RoleSettings):
    """Like any role's. It listens on a free port, so that workers behind one can reach it too."""

    section: ClassVar[str] = "scheduler"
