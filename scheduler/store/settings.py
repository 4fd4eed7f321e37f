"""What can be set for the scheduler of a home."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict

from swarm.base.units import parse_age
from swarm.net.settings import RoleSettings


def _is_a_server(text: str) -> str:
    from scheduler.store.backend import server_url  # SQLAlchemy: only where there is something to look at

    server_url(text)
    return text


def _is_an_age(text: str) -> str:
    parse_age(text)
    return text


class StoreSettings(BaseModel):
    """Where campaigns and results are kept, and for how long."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    store: Annotated[str, AfterValidator(_is_a_server)] | None = None
    """`postgresql://user:password@host/database`; None: a file of this home."""
    keep: Annotated[str, AfterValidator(_is_an_age)] | None = None
    """How long after its end a campaign is kept, such as `90d`; None: for ever."""


class SchedulerSettings(RoleSettings, StoreSettings):
    """Like any role's. It listens on a free port, so that workers behind one can reach it too."""

    section: ClassVar[str] = "scheduler"
