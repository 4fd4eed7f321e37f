"""What a worker can be told: section `[worker]` of the file, `SARK_…` in the environment, flags of `join`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from node.settings.rules import Rules, read_quiet
from protocol.wire.base import Name
from swarm.base.units import parse_duration
from swarm.net.identity import peer_id_bytes
from swarm.net.settings import RoleSettings


def _is_a_scheduler(text: str) -> str:
    try:
        peer_id_bytes(text)
    except ValueError:
        raise ValueError(
            "a scheduler id looks like 12D3Koo… (52 characters); the machine that submits tells its own: sark-node info"
        ) from None
    return text


def _is_quiet(text: str) -> str:
    read_quiet(text)
    return text


def _is_an_endpoint(text: str) -> str:
    """`URL` or `URL,NAME`; empty: none."""
    if text:
        from drivers.contract.base import Unfit
        from drivers.openai.client import read_server  # not for every start

        try:
            read_server(text.partition(",")[0].strip())
        except Unfit as why:
            raise ValueError(str(why)) from None
    return text


def _is_duration(text: str) -> str:
    parse_duration(text)
    return text


Scheduler = Annotated[str, AfterValidator(_is_a_scheduler)]


class WorkerSettings(RoleSettings):
    """Defaults run a worker for its own user with no file at all."""

    section: ClassVar[str] = "worker"

    name: Name | None = None
    """Shown to people; None: the host's."""
    labels: Annotated[dict[Name, Name], Field(max_length=16)] = {}
    owners: tuple[Scheduler, ...] = ()
    """Schedulers of this device's owner on other machines: they may do all that this home's own may."""
    allow: tuple[Scheduler, ...] = ()
    """Schedulers of others that are served too."""
    accept_anyone: bool = False
    """Serve strangers, a little and behind all others. Needs the full sandbox."""
    teams: tuple[Name, ...] = ()
    """Of those that a pool let in, serve only these teams; none: all."""
    longest: Annotated[str, AfterValidator(_is_duration)] = "1h"
    """The most that a task of others than the owner may take by its own limits, and may wait here: `30m`, `2h`."""
    owner_first: bool = False
    """The owner's tasks go before everybody's, whatever the priorities."""
    quiet: tuple[Annotated[str, AfterValidator(_is_quiet)], ...] = ()
    """No new work at these hours, local time: `22:00-07:00`, `Sat`, `Mon-Fri 09:00-17:00`."""
    on_battery: bool = False
    """Take new work also while the device runs on its battery."""
    slots: Annotated[int, Field(ge=1, le=64)] = 1
    """Leases at a time. Measuring itself is one at a time for each device, whatever is set here."""
    patience_s: Annotated[float, Field(ge=0, le=600)] = 10.0
    """The longest that a measurement waits for other work on this device to end before it is made beside that; 0: it does not wait."""
    cache_bytes: Annotated[int, Field(ge=0)] | None = None
    """Cap of the model cache; None: 20 GiB or half of the free disk."""
    memory_share: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Of this device's memory, the most that one run may take."""
    enroll: bool = True
    """Find out at the first start, and when the hardware has changed, what measuring here needs and what this device can do at best."""
    api: Annotated[str, AfterValidator(_is_an_endpoint)] = ""
    """A server that speaks the OpenAI API, to be measured by whom this device serves: `http://127.0.0.1:8000/v1`, or with a name to show
    for it, `http://127.0.0.1:8000/v1,vllm`. Its key, if it needs one, is the variable SARK_API_KEY."""
    api_watch: bool = False
    """Look at that server's processes, GPU memory and `/metrics` as well, where it runs on this host."""
    simulate: bool = False
    """Offer drivers that invent their figures. For trying the swarm out, never for results."""

    @property
    def longest_s(self) -> float:
        """`longest` in seconds."""
        return parse_duration(self.longest)

    @property
    def rules(self) -> Rules:
        """When no new work is taken."""
        return Rules(tuple(read_quiet(text) for text in self.quiet), self.on_battery)
