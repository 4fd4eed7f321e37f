"""The last step into the sandbox, on whichever system this is."""

from __future__ import annotations

import sys

from drivers.sandbox.rlimits import Sandbox, SandboxError, Tier


def enter(sandbox: Sandbox) -> None:
    """Give up, for good, what the sandbox's tier takes away; the last thing before the model is touched. Raises `SandboxError`."""
    if sandbox.tier is Tier.NONE:
        return
    try:
        if sys.platform == "linux":
            from drivers.sandbox import linux

            linux.restrict(sandbox.plan, full=sandbox.tier is Tier.FULL)
        elif sys.platform == "darwin":
            from drivers.sandbox import mac

            mac.enter(mac.system_library(), sandbox.plan)
        else:
            raise SandboxError(f"this system has no sandbox of tier {sandbox.tier}")
    except OSError as why:
        raise SandboxError(str(why)) from why
