"""Malicious models and drivers in real processes: their acts are refused or end with a reason, and leave nothing behind.

What must be refused follows from the tier that this machine's probe claims. The same acts are also tried without a sandbox, to
notice an act that is refused for another reason.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from drivers.contract.base import (
    MIB,
    Crashed,
    DriverError,
    Limits,
    OutOfMemory,
    RunFindings,
    TimedOut,
    Unfit,
    WorkOrder,
)
from drivers.launch import child
from drivers.launch import probe_tier as sandbox
from drivers.launch.launch import Launch, Zygote
from drivers.measure.stopping import MeasureJob
from drivers.sandbox import linux, mounts
from drivers.sandbox.enter import Tier
from tests.drivers import holding
from tests.drivers.hostile_launches import COUNTED, LIMITS, ROOM, HostileZygote, findings, play
from tests.drivers.onnx_models import OnnxModels

CLONE: Final = Path(__file__).parents[3]
GONE_S: Final = 5.0
ALWAYS: Final = frozenset(
    {"open more files", "take more memory than allowed", "dump its memory", "speak for the reaper"}
)
"""Refused on every tier: by limits, or because the launch is never given the means."""
ROOT_ONLY: Final = frozenset({"take more memory than allowed", "dump its memory"})
"""The superuser may raise limits on a tier that does not remove its rights."""
BY_PROBE: Final = {
    "reads_secret": (
        "read a file next to the model",
        "read it by a symbolic link",
        "read it by a hard link",
        "read it by going up",
        "read it by going up from its own folder",
        "read a key of the node",
        "look into the node's folder",
        "look into temporary files",
        "read who uses this device",
        "read the node's files by its root",
    ),
    "writes_outside": (
        "write next to the model",
        "write into the model",
        "remove the model",
        "write into the libraries",
        "change the kernel's settings",
        "press the kernel's keys",
    ),
    "connects": (
        "connect",
        "send a datagram",
        "open a socket of version 6",
        "ask the kernel about the network",
    ),
    "executes": (
        "fork",
        "fork with flags behind a pointer",
        "run a program",
        "become a program",
        "limit the node",
        "hold the node by its number",
        "signal everybody",
        "outlive the reaper",
        "be somebody else",
        "new namespaces",
        "watch the kernel",
        "handle page faults",
        "rings into the kernel",
        "the kernel's keyring",
        "memory that outlives it",
        "files in memory",
        "change the rights next to the model",
        "change the times next to the model",
        "mark the file next to the model",
        "cut off the file next to the model",
        "connect to a local service by its file",
    ),
    "signals": ("signal the node", "signal the node by a file"),
    "sees_processes": ("see the node's process", "read the node's environment", "connect to a local service"),
    "fills_disk": ("fill the disk", "threads without end", "code of its own"),
}
"""What the probe tries → the acts that must be refused if that was refused, because the same part of the sandbox blocks them."""
EVERYWHERE_OPEN: Final = frozenset(
    {
        "connect",
        "send a datagram",
        "fork",
        "run a program",
        "become a program",
        "signal the node",
        "signal the node by a file",
        "fill the disk",
    }
    | {
        "read a file next to the model",
        "read it by a symbolic link",
        "write next to the model",
        "code of its own",
    }
    | {
        "see the node's process",
        "look into the node's folder",
        "connect to a local service",
        "look into temporary files",
        "change the rights next to the model",
        "change the times next to the model",
        "cut off the file next to the model",
        "connect to a local service by its file",
    }
)
"""The control: acts that work without a sandbox on any Linux."""


REACHED: Final = sandbox.probe()
OPEN: Final = sandbox.find_open(REACHED.tier) if REACHED.tier is not Tier.NONE else tuple(BY_PROBE)
REFUSED: Final = sorted(
    {act for name, acts in BY_PROBE.items() if name not in OPEN for act in acts}
    | (ALWAYS if REACHED.tier is not Tier.NONE or os.geteuid() else ALWAYS - ROOT_ONLY)
)
"""What this machine must refuse, by its own claim. Not empty on any tier."""


@pytest.fixture(scope="module")
def hostile_launches() -> Iterator[HostileZygote]:
    """The hostile driver in the strongest sandbox that this machine has."""
    made = HostileZygote(REACHED.tier)
    yield made
    made.close()


@pytest.fixture(scope="module")
def loose() -> Iterator[HostileZygote]:
    """The hostile driver without a sandbox."""
    made = HostileZygote(Tier.NONE)
    yield made
    made.close()


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """A file next to the model, a key in a home, a port and a local service. Yields a function that writes a model naming them."""
    home, models = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("wicked")
    key, pairs = home / "key", models / "neighbour"
    key.write_bytes(b"the node's key")
    pairs.write_bytes(b"not for models")
    with (
        socket.socket() as listening,
        socket.socket(socket.AF_UNIX) as local,
        socket.socket(socket.AF_UNIX) as service,
    ):
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        name = f"sark-test-{os.getpid()}"
        local.bind(f"\0{name}")
        local.listen()
        place = str(home / "service")
        service.bind(place)
        service.listen()
        shared = {"neighbour": str(pairs), "key": str(key), "node": os.getpid(), "room": ROOM}
        shared |= {"abstract": name, "service": place}

        def model(**keys: Any) -> str:
            path = models / "model.json"
            path.write_text(json.dumps(shared | {"port": listening.getsockname()[1]} | keys))
            return str(path)

        yield model


def tried(hostile_launches: HostileZygote, model: Callable[..., str], acts: list[str]) -> dict[str, bool]:
    """Which acts worked."""
    found = findings(hostile_launches, model(**{"try": acts}))
    return {act: bool(found[f"act_{place}"]) for place, act in enumerate(acts)}


@pytest.fixture(scope="module")
def worked(hostile_launches: HostileZygote, surroundings: Callable[..., str]) -> dict[str, bool]:
    """Which of the acts that this machine claims to refuse worked."""
    return tried(hostile_launches, surroundings, REFUSED)


@pytest.mark.parametrize("act", REFUSED)
def test_what_the_probe_claims_is_refused_to_hostile_code(worked: dict[str, bool], act: str) -> None:
    assert not worked[act]


@pytest.mark.skipif(sys.platform != "linux", reason="the acts are written for Linux")
def test_without_a_sandbox_the_same_acts_work_so_that_their_refusal_says_something(
    loose: HostileZygote, surroundings: Callable[..., str]
) -> None:
    done = tried(loose, surroundings, sorted(EVERYWHERE_OPEN))
    assert [act for act, did in done.items() if not did] == []


@pytest.mark.parametrize("gpu", [False, True])
def test_in_the_partial_sandbox_what_lies_open_cannot_be_changed(
    surroundings: Callable[..., str], gpu: bool
) -> None:
    """Also tested where the full sandbox is available. A unit on a GPU keeps local sockets, which its driver may need."""
    if REACHED.tier is Tier.NONE or sys.platform != "linux":
        assert REACHED.reasons or sys.platform != "linux"
        return
    held = HostileZygote(Tier.PARTIAL)
    acts = [*BY_PROBE["executes"], "write next to the model", "signal the node by a file"]
    if gpu:
        acts = [
            act for act in acts if act not in ("files in memory", "connect to a local service by its file")
        ]
    try:
        launch = Launch(
            WorkOrder(surroundings(**{"try": acts}), "GPU (CUDA)" if gpu else "CPU (Hostile)", 1, 1),
            LIMITS,
            held,  # type: ignore[arg-type]
            sampler=None,
        )
        (result,) = [event for event in launch.events() if isinstance(event, RunFindings)]
    finally:
        held.close()
    done = {act: bool(result.figures[f"act_{place}"]) for place, act in enumerate(acts)}
    assert [act for act, did in done.items() if did] == []


@pytest.mark.parametrize("way", holding.WAYS)
def test_no_memory_of_the_kernel_grows_past_the_limit(
    hostile_launches: HostileZygote, surroundings: Callable[..., str], way: str
) -> None:
    if REACHED.tier is Tier.NONE or sys.platform != "linux":
        assert REACHED.reasons or sys.platform != "linux"
        return
    assert findings(hostile_launches, surroundings(hold=way))["held_mib"] <= COUNTED


def test_without_a_sandbox_some_of_it_does_so_that_the_refusal_says_something(
    loose: HostileZygote, surroundings: Callable[..., str]
) -> None:
    if sys.platform == "linux":
        for way in ("socket pairs", "shared memory", "memory files", "zero device"):
            assert findings(loose, surroundings(hold=way))["held_mib"] > COUNTED, way


PLACES: Final = (
    *("/opt/*", "/proc/cmdline", "/proc/sys/kernel/random/boot_id", "/proc/partitions", "/proc/keys"),
    *(
        "/sys/class/net/*/address",
        "/sys/devices/virtual/net/*/address",
        "/sys/devices/pci*/*/*/net/*/address",
    ),
    *(
        "/sys/class/dmi/id/product_uuid",
        "/sys/devices/virtual/dmi/id/board_serial",
        "/sys/class/block/*/size",
    ),
    *(
        "/etc/machine-id",
        "/etc/hostname",
        "/etc/passwd",
        "/etc/shadow",
        "/var/lib/dbus/machine-id",
        "/root/.*",
    ),
    *("/sys/fs/cgroup/*/tasks", "/sys/firmware/*", "/proc/bus/pci/*", "/sys/bus/pci/devices/*/vendor"),
)
"""Files that tell this device or its owner from others."""


def read(launches: HostileZygote, model: Callable[..., str], places: Sequence[str]) -> set[str]:
    """The paths that a launch can read."""
    found = findings(launches, model(read=list(places)))
    return {path for place, path in enumerate(places) if found[f"read_{place}"]}


def test_nothing_that_tells_this_device_from_others_is_read(
    hostile_launches: HostileZygote, loose: HostileZygote, surroundings: Callable[..., str]
) -> None:
    if sys.platform != "linux":
        return
    assert read(loose, surroundings, ["/proc/cmdline", "/proc/sys/kernel/random/boot_id"])
    open_to_it = read(hostile_launches, surroundings, PLACES)
    if REACHED.tier is Tier.FULL:
        above = {path for path in ("/opt/*", "/root/.*") if _leads_to_the_program(path.rpartition("/")[0])}
        assert open_to_it <= above
    elif REACHED.tier is Tier.PARTIAL:
        assert not open_to_it & {"/proc/cmdline", "/sys/class/net/*/address", "/etc/machine-id"}


def test_what_lies_in_a_clone_beside_the_packages_is_not_read(
    hostile_launches: HostileZygote, loose: HostileZygote, surroundings: Callable[..., str]
) -> None:
    """Such as a home with its keys, like that of the README's demo."""
    beside = [str(CLONE / "pyproject.toml")]
    assert read(loose, surroundings, beside) == set(beside)
    assert not read(hostile_launches, surroundings, beside) or REACHED.tier not in (Tier.FULL, Tier.PARTIAL)


def _leads_to_the_program(folder: str) -> bool:
    return any(Path(one).is_relative_to(folder) for one in mounts.code_folders())


def test_a_node_of_root_runs_models_as_nobody_outside_too(
    hostile_launches: HostileZygote, surroundings: Callable[..., str]
) -> None:
    if REACHED.tier is not Tier.FULL or os.geteuid():
        assert os.geteuid() or REACHED.reasons
        return
    order = WorkOrder(surroundings(do="go round for ever"), "CPU (Hostile)", 1, 1)
    running = hostile_launches.launch(order, LIMITS, MeasureJob.RUN)
    try:
        next(running.frames(lambda: time.monotonic() + LIMITS.load_s))
        below = psutil.Process(hostile_launches.process.pid).children(recursive=True)
        users = [
            set(process.uids()) | set(process.gids()) for process in below if process.name() == child.NAME
        ]
        assert users == [{linux.NOBODY}]
    finally:
        running.close()


def test_a_model_that_only_root_may_read_is_refused_with_what_helps(
    hostile_launches: HostileZygote, surroundings: Callable[..., str]
) -> None:
    if REACHED.tier is not Tier.FULL or os.geteuid():
        assert os.geteuid() or REACHED.reasons
        return
    model = Path(surroundings())
    model.chmod(0o600)
    try:
        with pytest.raises(Crashed, match=r"nobody may not read .*chmod a\+r"):
            play(hostile_launches, str(model))
    finally:
        model.chmod(0o644)


def test_nothing_that_was_tried_left_a_trace(
    worked: dict[str, bool], surroundings: Callable[..., str]
) -> None:
    model = Path(surroundings())
    assert worked
    assert model.is_file()
    if REACHED.tier is not Tier.NONE:
        assert not (Path(sys.prefix) / "left-here").exists()


FATAL: Final = (
    ("ptrace", "SIGSYS"),
    ("mount", "SIGSYS"),
    ("load code into the kernel", "SIGSYS"),
    ("start another kernel", "SIGSYS"),
    ("write into the node's memory", "SIGSYS"),
)


@pytest.mark.parametrize(("manifest", "signal"), FATAL if "executes" not in OPEN else ())
def test_a_call_that_nothing_harmless_makes_ends_the_run_with_its_reason(
    hostile_launches: HostileZygote, surroundings: Callable[..., str], manifest: str, signal: str
) -> None:
    with pytest.raises(Crashed, match=f"killed by {signal}"):
        play(hostile_launches, surroundings(do=manifest))


ENDS: Final = (
    ("crash", Crashed, "killed by SIGSEGV"),
    ("abort", Crashed, "killed by SIGABRT"),
    ("eat memory", OutOfMemory, "out of memory"),
    ("go round for ever", TimedOut, "still running after its limit"),
    ("leave the group", TimedOut, "still running after its limit"),
    ("flood the pipe", Crashed, "broke its contract"),
    ("talk nonsense", Crashed, "broke its contract"),
    ("dig", Crashed, "exit code 7"),
    ("write a large file", Crashed, "File too large|SIGXFSZ"),
)


@pytest.mark.slow
@pytest.mark.parametrize(("manifest", "error", "words"), ENDS, ids=[end[0] for end in ENDS])
@pytest.mark.parametrize("tier", ["reached", "none"])
def test_on_every_tier_harm_ends_with_a_reason_and_leaves_nothing(
    hostile_launches: HostileZygote,
    loose: HostileZygote,
    surroundings: Callable[..., str],
    tier: str,
    manifest: str,
    error: type[DriverError],
    words: str,
) -> None:
    held = hostile_launches if tier == "reached" else loose
    limits = Limits(load_s=20, run_s=0.5, memory_bytes=256 * MIB, output_bytes=ROOM)
    with pytest.raises(error, match=words):
        play(held, surroundings(do=manifest), limits if error is TimedOut else LIMITS)
    left = psutil.Process(held.process.pid).children(recursive=True)
    assert psutil.wait_procs(left, timeout=GONE_S)[1] == []  # the reaper may just be ending
    assert list(Path(tempfile.gettempdir()).glob("sark-run-*")) == []
    assert list(Path(tempfile.gettempdir()).rglob("core*")) == []


def test_what_one_launch_leaves_in_its_folder_the_next_does_not_find(
    hostile_launches: HostileZygote, surroundings: Callable[..., str]
) -> None:
    play(hostile_launches, surroundings(do="leave a note"))
    with pytest.raises(Crashed, match=r"exit code 9: \[\]$"):
        play(hostile_launches, surroundings(do="look for a note"))


# -- models ----------------------------------------------------------------------------------------------------------------


OUTSIDE: Final = ("../weights", "/etc/hostname", "link", "here/../../weights", "weights")


@pytest.mark.parametrize("location", OUTSIDE)
def test_weights_in_another_file_are_not_read(zygote: Zygote, tmp_path: Path, location: str) -> None:
    (tmp_path / "weights").write_bytes(bytes(16))
    models = OnnxModels(tmp_path / "inner")
    models.folder.mkdir()
    (models.folder / "link").symlink_to(tmp_path / "weights")
    order = WorkOrder(models.external(location), "CPU (ONNX)", 2, 1)
    with pytest.raises((Unfit, Crashed)):
        list(Launch(order, LIMITS, zygote).events())


def test_a_loop_without_end_ends_with_the_time(zygote: Zygote, models: OnnxModels) -> None:
    order = WorkOrder(models.endless(), "CPU (ONNX)", 2, 1)
    with pytest.raises(TimedOut, match="still"):
        list(Launch(order, Limits(load_s=20, run_s=0.5), zygote).events())


def test_a_giant_tensor_ends_with_the_memory(zygote: Zygote, models: OnnxModels) -> None:
    order = WorkOrder(models.greedy(), "CPU (ONNX)", 2, 1)
    with pytest.raises((OutOfMemory, Unfit)):
        list(Launch(order, LIMITS, zygote).events())


def test_an_input_of_hundreds_of_dimensions_is_a_broken_model(zygote: Zygote, models: OnnxModels) -> None:
    with pytest.raises(Unfit, match="input 'x' has 300 dimensions, a model's inputs have at most 64"):
        list(Launch(WorkOrder(models.deep(300), "CPU (ONNX)", 2, 1), LIMITS, zygote).events())


def test_an_operator_of_somebodys_library_is_refused(zygote: Zygote, models: OnnxModels) -> None:
    with pytest.raises(Unfit, match=r"com\.acme|Thing"):
        list(Launch(WorkOrder(models.custom(), "CPU (ONNX)", 2, 1), LIMITS, zygote).events())
