"""The command `trust`: which devices the campaigns of this home use."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from protocol.errors import CampaignError
from scheduler.cli.options import SWARM, AsJson
from swarm.base.home import Home
from swarm.base.screen import new_console, print_json
from swarm.base.text import safe_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scheduler.campaign.model import Campaign
    from scheduler.trust.untrusted import UntrustedDevice

app = typer.Typer()


def ask_to_trust(home: Home, campaign: Campaign, gates: tuple[str, ...]) -> None:
    """Ask once about each device that serves this submitter and fits the campaign but is not trusted yet. A refusal is remembered."""
    from scheduler.preview.look import serving_devices

    ask_about(home, serving_devices(home, campaign, gates), partial(typer.confirm, default=False, err=True))


def ask_about(home: Home, devices: Iterable[UntrustedDevice], confirm: Callable[[str], bool]) -> None:
    """Ask the owner about each device that has not been asked about before."""
    from scheduler.trust.listed import decline_peer, read_listed, trust_peer

    listed = read_listed(home)
    for device in devices:
        if device.peer in listed.declined or device.peer in listed.peers:
            continue
        if confirm(f"Trust {device.title} for your campaigns?"):
            trust_peer(home, device.peer, safe_text(device.name, 40), now=time.time())
        else:
            decline_peer(home, device.peer)


@app.command(rich_help_panel=SWARM)
def trust(
    ctx: typer.Context,
    peer: Annotated[
        str,
        typer.Argument(help="Peer id of the device's worker.  \\[default: list them]", metavar="PEER_ID"),
    ] = "",
    name: Annotated[str, typer.Option(help="Name of the device in this list.", metavar="NAME")] = "",
    forget: Annotated[bool, typer.Option("--forget", help="Stop trusting the device.")] = False,
    forgive: Annotated[
        bool,
        typer.Option(
            "--forgive", help="Forget what PEER_ID did as a stranger; a refuted worker gets tasks again."
        ),
    ] = False,
    same_device_as: Annotated[
        str,
        typer.Option(
            help="The worker is on the same device as this other worker.",
            metavar="PEER_ID",
            show_default=False,
        ),
    ] = "",
    device: Annotated[
        str,
        typer.Option(
            help="Assign this device id to PEER_ID, even if another key claims it; with --same-device-as, to both.",
            metavar="DEVICE_ID",
            show_default=False,
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Trust a device: campaigns give it tasks and models, and believe its results. Without PEER_ID, list the trusted devices.

    Devices of this home and of its pools are trusted without this. Trust applies to the device's key, whatever name it uses. When a
    device is forgotten, running campaigns stop their runs on it. A device id belongs to the key that first used it: another worker on that
    machine, with a key of its own, needs --same-device-as.
    """
    given = [
        option
        for value, option in (
            (forget, "--forget"),
            (forgive, "--forgive"),
            (name, "--name"),
            (same_device_as, "--same-device-as"),
            (device, "--device"),
        )
        if value
    ]
    if given and not peer:
        raise CampaignError(
            f"{given[0]} needs a peer id", hint="sark-node trust PEER_ID; sark-node trust lists them"
        )
    if given[0:1] in (["--forget"], ["--forgive"]) and len(given) > 1:
        raise CampaignError(
            f"{given[0]} and {given[1]} cannot be used together",
            hint=f"sark-node trust {peer} {given[0]}",
        )
    home: Home = ctx.obj
    if not peer:
        _list(home, as_json)
    elif forgive:
        _forgive(home, peer, as_json)
    elif forget:
        _forget(home, peer, as_json)
    else:
        _trust(home, peer, name, same_device_as, device, as_json)


def _list(home: Home, as_json: bool) -> None:
    from scheduler.output.trusted import trusted_devices, trusted_table
    from scheduler.trust.reputation import read_reputation, reputation_words

    devices, strangers = trusted_devices(home, time.time()), read_reputation(home).keys
    if as_json:
        others = [each.model_dump(mode="json") for each in strangers]
        print_json({"count": len(devices), "trusted": list(devices), "strangers": others})
        return
    if devices:
        new_console().print(trusted_table(devices))
    else:
        print("No device is trusted yet. Add a device of yours: sark-node invite")
        print("Trust somebody else's device: sark-node trust PEER_ID")
    if strangers:
        print("\nStrangers, by their results for this home:")
        for each in strangers:
            print(f"  {each.peer}  {reputation_words(each)}")


def _forgive(home: Home, peer: str, as_json: bool) -> None:
    from scheduler.trust.listed import check_peer
    from scheduler.trust.reputation import change_reputation, read_reputation

    known = read_reputation(home).of(check_peer(peer))
    change_reputation(home, lambda book: book.forgive(peer))
    if as_json:
        print_json({"peer": peer, "forgiven": bool(known.refuted)})
    else:
        print(f"{peer} {'is forgiven' if known.refuted else 'was not refuted'}.")


def _forget(home: Home, peer: str, as_json: bool) -> None:
    from scheduler.output.trusted import trusted_devices
    from scheduler.trust.listed import forget_peer

    words = "is trusted no longer" if forget_peer(home, peer) else "was not listed"
    kept = next((each for each in trusted_devices(home, time.time()) if each.peer == peer), None)
    if kept is not None:
        words += f", but stays trusted: {kept.kind}"
    if as_json:
        print_json({"peer": peer, "trusted": False})
    else:
        print(f"{peer} {words}.")


def _trust(home: Home, peer: str, name: str, same_device_as: str, device: str, as_json: bool) -> None:
    from scheduler.trust.listed import trust_peer
    from scheduler.trust.pinned import bind_keys, claim_device

    if same_device_as:
        device = bind_keys(home, peer, same_device_as, device)
    elif device:
        claim_device(home, peer, device)
    trust_peer(home, peer, name, now=time.time())
    if as_json:
        print_json({"peer": peer, "trusted": True})
    else:
        worker = f", as a worker of device {safe_text(device, 80)}" if device else ""
        print(f"{peer} is trusted from now on{worker}.")
