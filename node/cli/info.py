"""`info`: shows this device's properties and units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from protocol.values.match import show_value
from protocol.values.requirement import ATTRIBUTES, show_size
from swarm.base.home import Home
from swarm.base.screen import new_console, print_json

if TYPE_CHECKING:
    from drivers.measure.gpu import Gpu

app = typer.Typer()
PANEL: Final = "This device"


@app.command(rich_help_panel=PANEL)
def info(
    ctx: typer.Context,
    attributes: Annotated[
        bool,
        typer.Option(
            "--attributes",
            help="List the attributes that campaign clauses can use, with this device's values.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show this device: processor, memory, GPUs and the compute units that work. Needs no network."""
    from importlib.metadata import version

    from drivers.launch.launch import probe_units
    from drivers.launch.probe_tier import probe
    from node.device.calibration import headline
    from node.device.calibration_file import calibration_file, read_calibration
    from node.device.gpu_units import units_on_gpus
    from node.device.probe import build_advert, probe_device
    from node.settings.settings import WorkerSettings, driver_secrets
    from protocol.words import Role
    from swarm.net.identity import load_or_create
    from swarm.pools.membership import joined_pools

    home: Home = ctx.obj
    environment = ctx.meta["environment"]
    settings = WorkerSettings.load(home.config_file, environment, {})
    look = units_on_gpus(settings.gpus, probe_units, driver_secrets(settings, environment))
    profile = probe_device(home.folder("worker"), look, sandbox=probe(), on=look.gpus)
    stored = read_calibration(calibration_file(profile.fingerprint), profile.fingerprint)
    keys = {role: load_or_create(home.key(role)).peer_id for role in ("worker", "scheduler")}
    pools = joined_pools(home, Role.WORKER)
    advert = build_advert(
        profile, keys["worker"], version=version("sark-node"), pools=sorted({pool.name for pool in pools})
    )
    values = {attribute.name: attribute.read(advert) for attribute in ATTRIBUTES.values()}
    if as_json:
        document = {
            **advert.model_dump(mode="json", exclude={"seq", "ttl_s", "gone", "v", "peer", "addresses"}),
            "worker": keys["worker"],
            "scheduler": keys["scheduler"],
            "notes": list(profile.notes),
            "fingerprint": profile.fingerprint,
            "calibration": stored.calibration.model_dump(mode="json") if stored.calibration else None,
            "sandbox_notes": list(profile.sandbox_notes),
        }
        print_json(document)
        return
    console = new_console()
    table = Table(box=None, show_header=attributes, padding=(0, 2, 0, 0), header_style="dim")
    if attributes:
        for column in ("attribute", "kind", "meaning", "here"):
            table.add_column(column)
        for attribute in ATTRIBUTES.values():
            value = values[attribute.name]
            shown = "unknown" if value is None else show_value(attribute.of, value)
            table.add_row(attribute.name, str(attribute.of), attribute.meaning, Text(shown))
        table.add_row("label.NAME", "text", "a label set by the owner: join --label NAME=VALUE", "")
        console.print(table)
        return
    for what, value in (
        ("device", f"{profile.name}  ({profile.device})"),
        ("processor", profile.soc or "unknown"),
        ("cores", f"{_known(profile.cores)} physical, {_known(profile.threads)} logical"),
        ("memory", show_size(profile.ram) if profile.ram else "unknown"),
        ("system", f"{profile.os or 'unknown'}, {profile.arch}"),
        ("GPUs", _gpus(profile.gpu_report.gpus) or "none found"),
        ("units", "\n".join(f"{unit.unit}  ({unit.runtime})" for unit in profile.units) or "none works"),
        ("shows live", ", ".join(profile.monitors) or "nothing"),
        (
            "sandbox",
            "\n".join((f"{profile.sandbox}: {SANDBOX_TIERS[profile.sandbox]}", *profile.sandbox_notes)),
        ),
        (
            "calibration",
            headline(stored.calibration)
            if stored.calibration
            else f"{stored.missing}; run: sark-node calibrate",
        ),
        ("fingerprint", profile.fingerprint),
        ("works for", "\n".join(f"pool {pool.name}  ({pool.pool})" for pool in pools)),
        ("notes", "\n".join(profile.notes)),
        ("worker id", keys["worker"]),
        (
            "scheduler id",
            f"{keys['scheduler']}\nother devices serve it with: sark-node join --allow {keys['scheduler']}",
        ),
    ):
        if value:
            table.add_row(Text(what, style="dim"), Text(value))
    console.print(table)


def _gpus(gpus: Sequence[Gpu]) -> str:
    """A line for each GPU, with the numbers for the setting `gpus` if there are several."""
    numbers = [f"{number}: " if len(gpus) > 1 else "" for number in range(len(gpus))]
    return "\n".join(number + _gpu(gpu) for number, gpu in zip(numbers, gpus, strict=True))


def _gpu(gpu: Gpu) -> str:
    """`NVIDIA H100, 80 GiB, driver 550.54, compute 9.0, tensor cores of generation 4, up to 700 W`, without unknown facts."""
    facts = [gpu.name, show_size(gpu.vram) if gpu.vram else "memory unknown"]
    facts += [f"driver {gpu.driver}"] if gpu.driver else []
    facts += [f"compute {gpu.compute[0]}.{gpu.compute[1]}"] if gpu.compute else []
    facts += [f"tensor cores of generation {gpu.tensor_cores}"] if gpu.tensor_cores else []
    facts += ["no tensor cores"] if gpu.tensor_cores == 0 else []
    facts += [f"up to {gpu.power_limit_w:.0f} W"] if gpu.power_limit_w else []
    return ", ".join(facts)


def _known(value: int | None) -> str:
    return "?" if value is None else str(value)


SANDBOX_TIERS = {
    "full": "a run sees its model, its own folder and the libraries, nothing else of this device",
    "partial": "a run is only partly isolated; serve only people you know",
    "none": "a run can read and reach what you can; serve only people you know",
}
