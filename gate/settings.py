"""What an operator can set on a gate."""

from __future__ import annotations

from typing import ClassVar, Final

from protocol.base import AddressText
from swarm.settings import RoleSettings

DEFAULT_PORT: Final = 4101


class GateSettings(RoleSettings):
    """Like any role's, but with a port of its own, so that its address can be told to others."""

    section: ClassVar[str] = "gate"

    listen: tuple[AddressText, ...] = (f"/ip4/0.0.0.0/tcp/{DEFAULT_PORT}",)
