"""The last step into the sandbox, by the system that this is: gives up for good what the shelter's tier takes away."""

from __future__ import annotations

import sys

from drivers.sandbox.rlimits import SandboxError, Shelter, Tier


def shut(shelter: Shelter) -> None:
    """The last thing before the model is touched: give up, for good, what the shelter's tier takes away. Raises `SandboxError`."""
    if shelter.tier is Tier.NONE:
        return
    try:
        if sys.platform == "linux":
            from drivers.sandbox import linux

            linux.shut_calls(shelter.plan, all_of_it=shelter.tier is Tier.FULL)
        elif sys.platform == "darwin":
            from drivers.sandbox import mac

            mac.shut(mac.system_library(), shelter.plan)
        else:
            raise SandboxError(f"this system has no sandbox of tier {shelter.tier}")
    except OSError as why:
        raise SandboxError(str(why)) from why
