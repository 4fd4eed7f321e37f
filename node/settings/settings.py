"""Settings of a worker: section `[worker]` of config.toml, `SARK_…` in the environment, options of `join`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Final

from pydantic import AfterValidator, BeforeValidator, Field

from node.settings.gpus import read_gpus_setting
from node.settings.rules import Rules, read_quiet
from protocol.wire.base import Name
from swarm.base.text import ascii_line
from swarm.base.units import parse_duration
from swarm.net.identity import peer_id_bytes
from swarm.net.settings import RoleSettings


def _checked(check: Callable[[str], object]) -> AfterValidator:
    """Keeps the text unchanged if `check` raises no `ValueError` for it."""

    def validate(text: str) -> str:
        check(text)
        return text

    return AfterValidator(validate)


def _scheduler_id(text: str) -> None:
    try:
        peer_id_bytes(text)
    except ValueError:
        raise ValueError(
            "a scheduler id looks like 12D3Koo… (52 characters); on the machine that submits: sark-node info"
        ) from None


def _endpoint(text: str) -> None:
    """`URL` or `URL,NAME`; empty: none."""
    if text:
        from drivers.contract.base import Unfit
        from drivers.openai.client import read_server  # not for every start

        try:
            read_server(text.partition(",")[0].strip())
        except Unfit as why:
            raise ValueError(str(why)) from None


def _as_text(value: object) -> object:
    """A list of numbers from the file, in the format of the option."""
    return ",".join(map(str, value)) if isinstance(value, list) else value


Scheduler = Annotated[str, _checked(_scheduler_id)]


class WorkerSettings(RoleSettings):
    """The defaults run a worker for its own user."""

    section: ClassVar[str] = "worker"

    name: Name | None = None
    """Display name of the worker. Default: the host's name."""
    labels: Annotated[dict[Name, Name], Field(max_length=16)] = {}
    """Labels that campaigns can select, such as `site=lab`."""
    owners: tuple[Scheduler, ...] = ()
    """Peer ids of the owner's schedulers on other machines. They have the same rights as this home's own scheduler."""
    allow: tuple[Scheduler, ...] = ()
    """Peer ids of other people's schedulers that the worker also serves."""
    accept_anyone: bool = False
    """Whether to serve strangers too, after everybody else and within tight limits. Needs the full sandbox."""
    teams: tuple[Name, ...] = ()
    """Teams of pool members to serve. Default: all members of the pools."""
    max_duration: Annotated[str, _checked(parse_duration)] = "1h"
    """Maximum time that another user's task may take by its own limits, and may wait in the queue, such as `30m` or `2h`."""
    owner_first: bool = False
    """Whether the owner's tasks run first, whatever the priorities."""
    quiet: tuple[Annotated[str, _checked(read_quiet)], ...] = ()
    """Hours, in local time, in which to take no new work: `22:00-07:00`, `Sat`, `Mon-Fri 09:00-17:00`."""
    on_battery: bool = False
    """Whether to take new work on battery too."""
    slots: Annotated[int, Field(ge=1, le=64)] = 1
    """Maximum number of leases granted at a time. A device measures one task at a time, whatever this number."""
    max_wait_s: Annotated[float, Field(ge=0, le=600)] = 10.0
    """Maximum number of seconds that a measurement waits for an idle host before it runs anyway. 0: no wait."""
    cache_bytes: Annotated[int, Field(ge=0)] | None = None
    """Size limit of the model cache, in bytes. Default: 20 GiB or half of the free disk space."""
    memory_share: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Largest share of this device's memory for one run."""
    calibrate: bool = True
    """Whether to calibrate at the first start, whenever the hardware has changed, and again when the host is quiet."""
    api: Annotated[str, _checked(_endpoint)] = ""
    """An OpenAI-compatible server to offer as a unit: `http://127.0.0.1:8000/v1`, or with a display name,
    `http://127.0.0.1:8000/v1,vllm`. The environment variable SARK_API_KEY holds its key."""
    api_watch: bool = False
    """Whether to also watch that server's processes, GPU memory and `/metrics`, if it runs on this host."""
    meter: str = ""
    """A CSV file that a wall meter writes, with the columns time and watts, from which energy is read."""
    gpus: Annotated[str, BeforeValidator(_as_text), _checked(read_gpus_setting)] = "one"
    """The GPUs that units use: `one` (the first), `each` (a unit for each: `GPU (ONNX)`, `GPU 1 (ONNX)` …), or their
    numbers as `sark-node info` shows them: `0,2`."""
    simulate: bool = False
    """Whether to offer the fake unit, whose figures come from a script. For trials, never for results."""

    @property
    def max_duration_s(self) -> float:
        return parse_duration(self.max_duration)

    @property
    def meter_file(self) -> Path | None:
        return Path(self.meter).expanduser() if self.meter else None

    @property
    def rules(self) -> Rules:
        return Rules(tuple(read_quiet(text) for text in self.quiet), self.on_battery)


API: Final = "api"
"""The driver, by its entry point's name."""
KEY: Final = "SARK_API_KEY"
CERTIFICATES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""Variables that say where the owner's own certificates are, for an https endpoint."""
SHORT: Final = 40


class DriverSecrets(dict[str, Mapping[str, str]]):
    """Environment variables for a driver's child processes, by the driver's name. Never shown."""

    def __repr__(self) -> str:
        return f"DriverSecrets({', '.join(self)})"


def driver_secrets(settings: WorkerSettings, environment: Mapping[str, str]) -> DriverSecrets:
    """The owner's settings for drivers, as variables of the driver that needs them; empty: none are set."""
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
