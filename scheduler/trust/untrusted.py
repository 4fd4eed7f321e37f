"""Devices that fit but are not trusted, and what the submitter can do about them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from swarm.base.text import count, safe_text

MAX_NAMED: Final = 3
MAX_NAME: Final = 40


@dataclass(frozen=True, slots=True)
class UntrustedDevice:
    """A device that fits, but whose key the submitter does not trust."""

    peer: str
    device: str
    name: str
    """The name that it gives itself."""
    serves: bool
    """Whether it allows this submitter."""

    @property
    def title(self) -> str:
        """`laptop-7 (12D3Koo…)`, with the whole key, since names can be copied."""
        return f"{safe_text(self.name, MAX_NAME)} ({self.peer})"


OPEN_LINE: Final = "Strangers may take these tasks and get the model: devices: {trust: anyone}."
"""For a campaign that is open to strangers."""


def untrusted_lines(devices: Sequence[UntrustedDevice]) -> list[str]:
    """What to do about devices that fit but are not trusted: those that serve this submitter first, each with its command."""
    serving = [each for each in devices if each.serves]
    lines = [
        f"{safe_text(each.name, MAX_NAME)} serves you, not trusted yet: sark-node trust {each.peer}"
        for each in serving[:MAX_NAMED]
    ]
    if len(serving) > MAX_NAMED:
        lines.append(f"and {len(serving) - MAX_NAMED} more serve you, not trusted yet: sark-node peers")
    if strangers := len(devices) - len(serving):
        fit = "fits" if strangers == 1 else "fit"
        lines.append(
            f"{count(strangers, 'stranger')} {fit} too: trust one with sark-node trust PEER_ID, or all with devices: {{trust: anyone}}"
        )
    return lines
