"""Settings of a home's scheduler."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict

from swarm.base.units import parse_age
from swarm.net.settings import RoleSettings


def _check_url(text: str) -> str:
    from scheduler.store.database import server_url  # SQLAlchemy, only where it is needed

    server_url(text)
    return text


def _check_age(text: str) -> str:
    parse_age(text)
    return text


class StoreSettings(BaseModel):
    """Where campaigns and results are stored, and for how long."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    store: Annotated[str, AfterValidator(_check_url)] | None = None
    """URL of the database server that stores campaigns and results: `postgresql://user:password@host/database`. Default: a file of this
    home."""
    keep: Annotated[str, AfterValidator(_check_age)] | None = None
    """Time for which a campaign is kept after its end, such as `90d`. Default: forever."""


class SchedulerSettings(RoleSettings, StoreSettings):
    """Settings of the scheduler role. It listens on a free port, so that workers behind a NAT can reach it too."""

    section: ClassVar[str] = "scheduler"
