"""`top`: an overview at any size of terminal; no name does harm; programs get the same data as JSON."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from protocol.formats.phase import Phase
from protocol.messages.health import Pong
from protocol.values.advert import Advert, UnitOffer
from protocol.values.attempt import TaskState
from protocol.values.match import match
from protocol.values.reading import DeviceReading, GpuReading
from protocol.values.requirement import Requirement
from protocol.words import WorkerState
from scheduler.output.fleet import ObservedDevice
from scheduler.output.top import TopSnapshot, bar, draw, top_json
from scheduler.store.readings import LiveReading
from scheduler.store.rows import CampaignRow, CampaignStatus, CampaignSummary, TaskRow
from swarm.base.screen import print_json
from swarm.net.identity import Identity
from swarm.net.network import Path

HOSTILE = "[red]x[/] \x1b[2J\x1b]0;pwned\x07 \u202egnp.exe\u200b\n=cmd()"


def device(
    name: str,
    state: WorkerState | None = WorkerState.ACTIVE,
    *,
    running: int = 0,
    queue: int = 0,
    why: str = "",
    silent: str = "",
) -> ObservedDevice:
    peer = Identity.from_seed(name).peer_id
    advert = Advert(
        peer=peer,
        seq=1,
        device=f"d-{len(name)}",
        name=name,
        units=(UnitOffer(unit="CPU (ONNX)", runtime="r"),),
    )
    pong = Pong(role="worker", incarnation=1, state=state, why=why, running=running, queue=queue)
    answered = None if silent else pong
    return ObservedDevice(
        advert, answered, silent, match(Requirement(), advert), None if silent else Path(True, None, 0.4)
    )


def campaign(
    n: int, *, done: int = 0, failed: int = 0, tasks: int = 10, name: str = "vision", over: bool = False
) -> CampaignSummary:
    row = CampaignRow(
        id=f"c-{n:08}",
        name=name,
        scheduler="s",
        spec="{}",
        epoch=1,
        planned=True,
        created=1000.0 - n,
        ended=1100.0 if over else None,
        outcome=CampaignStatus.SUCCEEDED if over else None,
    )
    counts = {TaskState.SUCCEEDED: done, TaskState.FAILED: failed, TaskState.QUEUED: tasks - done - failed}
    return CampaignSummary(row, counts)


def task(on: ObservedDevice, model: str = "mobilenet.onnx") -> TaskRow:
    return TaskRow(
        id="c-00000001/3",
        campaign="c-00000001",
        n=3,
        model=model,
        sha256="a" * 64,
        unit="CPU (ONNX)",
        state=TaskState.RUNNING,
        attempt=1,
        worker=on.advert.peer,
        device=on.advert.name,
        lease="l-1",
        phase=Phase.RUN,
        done=12,
        total=60,
        begun=0.0,
    )


def now(
    campaigns: list[CampaignSummary],
    devices: list[ObservedDevice],
    tasks: list[TaskRow] | None = None,
    unreachable: str = "",
) -> TopSnapshot:
    return TopSnapshot(
        at=1200.0,
        campaigns=campaigns,
        tasks=tasks or [],
        devices=devices,
        scheduling=True,
        unreachable=unreachable,
    )


def reading(*gpus: GpuReading, at: float = 1198.0) -> LiveReading:
    values = DeviceReading(cpu=0.62, memory=3 * 2**30, temperature_c=71.4, gpus=gpus)
    return LiveReading(at=at, reading=values)


BUSY_GPU = GpuReading(utilisation=0.97, memory=20 * 2**30, temperature_c=61.0, power_w=301.0)


def drawn(what: TopSnapshot, width: int, height: int | None = None, hint: str = "") -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, height=height, force_terminal=False).print(
        draw(what, width=width, height=height, hint=hint)
    )
    return out.getvalue().splitlines()


def test_a_glance_shows_progress_work_queue_and_path_at_80_columns() -> None:
    one, two = (
        device("lab-1", WorkerState.BUSY, running=2, queue=3),
        device("lab-2", silent="no answer within 3 s"),
    )
    lines = drawn(now([campaign(1, done=4, failed=1)], [two, one], [task(one)]), 80)
    text = "\n".join(lines)
    assert "2 devices, 1 silent  3 queued  1 campaign open" in lines[0]
    assert "━━━━╌╌╌╌" in text
    assert "4/10" in text
    assert lines[-2].startswith("lab-1")
    assert "c-00000001/3" in lines[-2]
    assert lines[-2].split()[-4:] == ["3", "direct,", "0.4", "ms"]
    assert "unreachable" in lines[-1]
    assert "no answer" in lines[-1]
    wide = "\n".join(drawn(now([campaign(1)], [one], [task(one)]), 160))
    assert "c-00000001/3 mobilenet.onnx, CPU (ONNX): run 12/60; 1 task of others" in wide


def test_what_sensors_show_stands_below_the_devices_and_lacks_are_marked() -> None:
    one, two = device("lab-1", running=1), device("lab-2", running=1)
    picture = now([campaign(1)], [one, two], [task(one)])
    shown = {one.advert.peer: reading(), two.advert.peer: reading(), "gone": reading()}
    *_, head, line = drawn(replace(picture, readings=shown), 80)
    assert head.split() == ["device", "cpu", "memory", "temp", "power"]
    assert line.split() == ["lab-1", "62", "%", "3", "GiB", "71", "°C", "—"], "only where a task of ours runs"


def test_each_gpu_has_a_line_and_an_old_reading_says_how_old_it_is() -> None:
    one = device("a-device-with-a-name-of-30-chars", running=1)
    two = device("lab-2", running=1)
    tasks = [task(one), replace(task(two), id="c-00000001/4", n=4)]
    picture = now([campaign(1)], [one, two], tasks)
    shown = {
        one.advert.peer: reading(BUSY_GPU, GpuReading(utilisation=0.0)),
        two.advert.peer: reading(at=1200.0 - 12),
    }
    lines = drawn(replace(picture, readings=shown), 80)
    assert all(len(line) <= 80 for line in lines)
    assert lines[-4].split()[-6:] == ["vram", "gpu", "°C", "gpu", "W", "read"]
    assert lines[-3].rstrip().endswith("97 %   20 GiB  61 °C 301 W")
    assert lines[-2].split() == ["gpu", "1", "0", "%", "—", "—", "—"]
    assert lines[-1].split()[-6:] == ["—", "—", "—", "—", "0:12", "ago"]
    narrow = drawn(replace(picture, readings=shown), 60)
    assert narrow[-4].split()[-2:] == ["vram", "read"]
    assert narrow[-1].rstrip().endswith("0:12 ago")


def test_json_has_the_readings_too() -> None:
    one = device("lab-1", running=1)
    picture = replace(now([], [one], [task(one)]), readings={one.advert.peer: reading(BUSY_GPU, at=1180.0)})
    (peer,) = json.loads(
        json.dumps(top_json(picture, {}), default=lambda value: value.model_dump(mode="json"))
    )["peers"]
    assert peer["reading"]["gpus"][0]["power_w"] == 301.0
    assert (peer["reading"]["power_w"], peer["reading"]["late"]) == (None, True)
    assert peer["reading"]["at"] == "1970-01-01T00:19:40+00:00"


def test_in_a_narrow_terminal_the_progress_of_a_task_replaces_its_name() -> None:
    one = device("lab-1", WorkerState.BUSY, running=1)
    assert "c-00000001/3 run 12/60 " in "\n".join(drawn(now([campaign(1)], [one], [task(one)]), 80))


def test_in_a_pipe_nothing_is_cut() -> None:
    one = device("a-name-that-is-64-" + "x" * 46, WorkerState.BUSY, running=1)
    assert one.advert.name in "\n".join(drawn(now([campaign(1)], [one], [task(one)]), 1000))


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 24), (60, 12), (200, 50)])
def test_it_never_outgrows_the_terminal_and_says_what_it_leaves_out(width: int, height: int) -> None:
    devices = [device(f"lab-{n:02}", running=int(n == 59)) for n in range(60)]
    picture = now([campaign(n, over=n > 2) for n in range(40)], devices, [task(one) for one in devices])
    picture = replace(picture, readings={one.advert.peer: reading(BUSY_GPU, BUSY_GPU) for one in devices})
    lines = drawn(picture, width, height, "Ctrl-C leaves")
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    assert any("more campaigns" in line for line in lines)
    assert any("more devices" in line for line in lines)
    assert any(line.startswith("lab-59") for line in lines), "what works is not what is left out"
    assert any("c-00000002" in line for line in lines) or height < 20


def test_names_of_campaigns_models_and_devices_do_no_harm() -> None:
    bad = device("bad", WorkerState.DRAINING, running=1)
    assert bad.pong is not None
    bad = replace(  # no advert may look like this, but even if it were accepted, it would do no harm
        bad,
        advert=bad.advert.model_copy(update={"name": HOSTILE}),
        pong=bad.pong.model_copy(update={"why": HOSTILE}),
    )
    picture = now([campaign(1, name=HOSTILE)], [bad], [task(bad, HOSTILE)], unreachable="")
    for width in (80, 160):
        text = "\n".join(drawn(picture, width))
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "\x07" not in text
        assert "[red]x[/]" in text


def test_an_empty_swarm_is_shown_with_a_hint() -> None:
    assert "sark-node init" in "\n".join(drawn(now([], []), 80))
    assert "no device has joined yet: sark-node join" in "\n".join(drawn(now([], []), 80))
    assert "No device can be reached: no gate answers" in "\n".join(
        drawn(now([], [], unreachable="no gate answers"), 80)
    )


def test_json_shows_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    one = device("lab-1", WorkerState.BUSY, running=1, queue=2)
    print_json(top_json(now([campaign(1, done=4)], [one], [task(one)]), {}))
    document = json.loads(capsys.readouterr().out)
    assert document["campaigns"][0]["tasks"]["succeeded"] == 4
    assert document["count"] == 1
    assert document["peers"][0]["tasks"][0]["n"] == 3
    assert document["peers"][0]["queue"] == 2
    assert document["unreachable"] is None


def test_a_bar_is_full_only_when_all_is_done() -> None:
    assert bar(0.0, 8) == "╌" * 8
    assert bar(0.01, 8) == "━" + "╌" * 7
    assert bar(0.999, 8) == "━" * 7 + "╌"
    assert bar(1.0, 8) == "━" * 8
