"""What the owner of this device gives single drivers: the endpoint of an API, and the key for it. It goes to that driver's children alone.

The URL is a setting (`join --api`). The key is none: it comes from the environment only, so that it stands in no file of ours, no
list of processes and no message, and it is read where the children's variables are put together.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from node.settings.settings import WorkerSettings
from swarm.base.text import ascii_line

API: Final = "api"
"""The driver, by its entry point's name."""
KEY: Final = "SARK_API_KEY"
CERTIFICATES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""Where the owner's own certificates are, for an endpoint behind https."""
SHORT: Final = 40


class DriverSecrets(dict[str, Mapping[str, str]]):
    """Variables for a driver's children, by the driver's name. Never shown."""

    def __repr__(self) -> str:
        return f"Private({', '.join(self)})"


def private_here(config_file: Path, environment: Mapping[str, str]) -> DriverSecrets:
    """The same for whoever is no worker: by the file and the environment alone. Raises `SettingsError`, `ResourceError`."""
    return private_of(WorkerSettings.load(config_file, environment, {}), environment)


def private_of(settings: WorkerSettings, environment: Mapping[str, str]) -> DriverSecrets:
    """What the owner has set, in the variables of the driver that it is for; empty: nothing."""
    if not settings.api:
        return DriverSecrets()
    url, _, name = settings.api.partition(",")
    given = {"SARK_API_URL": url.strip()}
    if name.strip():
        given["SARK_API_NAME"] = ascii_line(name.strip())[:SHORT]
    if settings.api_watch:
        given["SARK_API_WATCH"] = "1"
    given |= {name: environment[name] for name in (KEY, *CERTIFICATES) if environment.get(name)}
    return DriverSecrets({API: given})
