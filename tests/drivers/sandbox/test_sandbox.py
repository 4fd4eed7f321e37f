"""The sandbox: what each part lets through, by pure functions, and that a tier is what a real child experienced."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from drivers.contract.base import MIB, Crashed, Event, Limits, MeasureReport, WorkOrder
from drivers.launch import probe_tier as sandbox
from drivers.launch import prober
from drivers.launch.launch import Zygote, measure
from drivers.sandbox import landlock, linux, mac, mounts, seccomp, windows
from drivers.sandbox.enter import Tier
from drivers.sandbox.mounts import MountAction
from drivers.sandbox.seccomp import ABSENT, ALLOW, KILL, REFUSE
from drivers.testing.fake import UNIT

# -- the call filter -------------------------------------------------------------------------------------------------------

PID: Final = 7
LOAD, EQUAL, AT_LEAST, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06


def verdict(code: bytes, word: int, number: int, *arguments: int) -> int:
    """The kernel's decision about a call: interprets the filter program."""
    data = struct.pack("=IIQ6Q", number, word, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    ops = [struct.unpack_from("=HBBI", code, at) for at in range(0, len(code), 8)]
    held, at = 0, 0
    while True:
        op, yes, no, k = ops[at]
        at += 1
        if op == RETURN:
            return int(k)
        if op == LOAD:
            (held,) = struct.unpack_from("=I", data, k)
        elif op == AND:
            held &= k
        else:
            hit = {EQUAL: held == k, AT_LEAST: held >= k, ANY_BIT: bool(held & k)}[op]
            at += yes if hit else no


MACHINES: Final = [(name, *found) for name, found in seccomp.ARCHITECTURES.items()]


def numbers(column: int) -> dict[str, int]:
    """Call numbers by name, for one processor architecture."""
    return {
        rule.name: number
        for rule in seccomp.rules(PID, network=False, gpu=False)
        if (number := rule.numbers[column]) is not None
    }


@pytest.mark.parametrize(("machine", "column", "word"), MACHINES)
def test_the_filter_refuses_what_it_names_and_lets_the_rest_through(
    machine: str, column: int, word: int
) -> None:
    code = seccomp.program(machine, seccomp.rules(PID, network=False, gpu=False))
    call = numbers(column)
    for name, answer in (
        ("ptrace", KILL),
        ("mount", KILL),
        ("bpf", KILL),
        ("setns", KILL),
        ("unshare", REFUSE),
        ("execve", REFUSE),
        ("io_uring_setup", REFUSE),
        ("memfd_create", REFUSE),
        ("socketpair", REFUSE),
        ("inotify_init1", REFUSE),
        ("vmsplice", REFUSE),
        ("splice", REFUSE),
        ("io_setup", REFUSE),
        ("landlock_create_ruleset", REFUSE),
        ("seccomp", REFUSE),
    ):
        assert verdict(code, word, call[name]) == answer, name
    for harmless in (0, 1, 3, 9, 500):
        assert harmless in call.values() or verdict(code, word, harmless) == ALLOW
    assert verdict(code, word, seccomp.CLONE3) == ABSENT
    assert verdict(code, word ^ 1, 0) == KILL


@pytest.mark.parametrize(("machine", "column", "word"), MACHINES)
def test_the_filter_reads_arguments_where_they_decide(machine: str, column: int, word: int) -> None:
    code = seccomp.program(machine, seccomp.rules(PID, network=False, gpu=False))
    call = numbers(column)
    for name, arguments, answer in (
        ("clone", (0x10000 | 0x100,), ALLOW),
        ("clone", (17,), REFUSE),
        ("socket", (1,), REFUSE),
        ("socket", (2,), REFUSE),
        ("socket", (16,), REFUSE),
        ("kill", (PID, 6), ALLOW),
        ("kill", (1, 9), REFUSE),
        ("kill", (0xFFFFFFFF, 9), REFUSE),
        ("tgkill", (PID, PID, 6), ALLOW),
        ("tgkill", (8, 8, 6), REFUSE),
        ("prlimit64", (0,), ALLOW),
        ("prlimit64", (PID,), ALLOW),
        ("prlimit64", (8,), REFUSE),
        ("prctl", (1,), REFUSE),
        ("prctl", (22,), REFUSE),
        ("prctl", (15,), ALLOW),
        ("mmap", (0, 4096, 3, 0x22), ALLOW),
        ("mmap", (0, 4096, 3, 0x01), ALLOW),
        ("mmap", (0, 4096, 3, 0x21), REFUSE),
        ("mmap", (0, 4096, 3, 0x8021), REFUSE),
        ("mmap", (0, 4096, 3, 0x23), REFUSE),
        ("setsockopt", (3, 1, 7), REFUSE),
        ("setsockopt", (3, 1, 32), REFUSE),
        ("setsockopt", (3, 1, 2), ALLOW),
        ("ioctl", (0, 0x5412), REFUSE),
        ("ioctl", (0, 0x5401), ALLOW),
        ("ioctl", (0, 0x8901), REFUSE),
        ("fcntl", (3, 3), ALLOW),
        ("fcntl", (3, 8), REFUSE),
        ("fcntl", (3, 10), REFUSE),
        ("fcntl", (3, 15), REFUSE),
        ("fcntl", (3, 1031), REFUSE),
        ("fcntl", (3, 6), REFUSE),
        ("fcntl", (3, 1026), REFUSE),
    ):
        assert verdict(code, word, call[name], *arguments) == answer, (name, arguments)


@pytest.mark.parametrize(("machine", "column", "word"), MACHINES)
def test_without_a_view_of_its_own_no_file_is_changed_and_no_service_spoken_to(
    machine: str, column: int, word: int
) -> None:
    refused = seccomp.rules(PID, network=False, gpu=False, in_view=False)
    code = seccomp.program(machine, refused)
    call = {rule.name: rule.numbers[column] for rule in refused}
    for name in ("truncate", "fchmodat", "fchownat", "setxattr", "utimensat"):
        number = call[name]
        assert number is not None
        assert verdict(code, word, number) == REFUSE
        assert name not in numbers(column)
    assert verdict(code, word, numbers(column)["socket"], 1) == REFUSE
    with_gpu = seccomp.program(machine, seccomp.rules(PID, network=False, gpu=True, in_view=False))
    assert verdict(with_gpu, word, numbers(column)["socket"], 1) == ALLOW
    assert verdict(with_gpu, word, numbers(column)["socketpair"], 1) == ALLOW
    assert verdict(with_gpu, word, numbers(column)["setsockopt"], 3, 1, 7) == REFUSE


def test_a_second_numbering_of_calls_is_no_way_round_the_filter() -> None:
    code = seccomp.program("x86_64", seccomp.rules(PID, network=False, gpu=False))
    assert verdict(code, seccomp.ARCHITECTURES["x86_64"][1], seccomp.X32 | 39) == KILL


def test_a_driver_with_a_server_keeps_its_sockets_and_one_with_a_gpu_its_files_in_memory() -> None:
    word = seccomp.ARCHITECTURES["x86_64"][1]
    code = seccomp.program("x86_64", seccomp.rules(PID, network=True, gpu=True))
    assert verdict(code, word, numbers(0)["socket"], 2) == ALLOW
    assert verdict(code, word, numbers(0)["memfd_create"]) == ALLOW
    assert verdict(code, word, numbers(0)["ptrace"]) == KILL


# -- Landlock --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "words"), [(1, 1), (3, 1), (4, 2), (5, 2), (6, 3), (9, 3)])
def test_landlock_gets_only_what_its_version_knows(version: int, words: int) -> None:
    result = landlock.ruleset(version, network=False)
    assert len(result) == 8 * words
    assert struct.unpack_from("=Q", result)[0] == landlock.known_rights(version)
    assert bool(landlock.known_rights(version) & landlock.IOCTL_DEV) is (version >= 5)


def test_landlock_gives_a_file_no_rights_of_folders() -> None:
    rights, fd = struct.unpack("=Qi", landlock.rule(7, landlock.WRITE, is_folder=False, fd=5))
    assert fd == 5
    assert not rights & ~landlock.OF_FILES


def test_landlock_leaves_the_network_to_a_driver_that_needs_it() -> None:
    assert struct.unpack("=3Q", landlock.ruleset(7, network=True))[1] == 0


# -- the view --------------------------------------------------------------------------------------------------------------

TREE: Final = {
    "/usr": "folder",
    "/lib": ">usr/lib",
    "/opt/venv": "folder",
    "/opt/venv/lib": "folder",
    "/home/ann/.cache/models/m": "file",
    "/dev/null": "file",
    "/dev/nvidia0": "file",
    "/sys/devices": "folder",
    "/sys/devices/system/cpu": "folder",
    "/proc/cmdline": "file",
    "/proc/bus": "folder",
}


def planned(gpu: bool = False) -> mounts.MountPlan:
    """The plan for a launch of a model in a home."""
    return mounts.plan(
        "/tmp/run",
        ("/home/ann/.cache/models/m",),
        MIB,
        code=("/opt/venv", "/opt/venv/lib"),
        in_dev=("null", "nvidia0", "sda"),
        gpu=gpu,
    )


def made(plan: mounts.MountPlan) -> tuple[mounts.MountStep, ...]:
    """The plan's steps on a machine with the tree `TREE`."""
    return mounts.steps(
        plan, mounts.base_view(plan.reads, plan.devices, plan.hidden, lambda path: TREE.get(path, ""))
    )


def test_the_view_has_the_libraries_the_model_and_its_own_folder_and_nothing_else() -> None:
    steps = made(planned())
    bound = [step.path for step in steps if step.action in (MountAction.BIND, MountAction.DEVICE)]
    assert sorted(bound) == [
        "/dev/null",
        "/home/ann/.cache/models/m",
        "/opt/venv",
        "/sys/devices/system/cpu",
        "/usr",
    ]
    assert [step.path for step in steps if step.action is MountAction.TMPFS] == ["/tmp/run"]
    assert ("/lib", "usr/lib") in [
        (step.path, step.source) for step in steps if step.action is MountAction.LINK
    ]


def test_what_tells_this_device_from_others_is_hidden_and_a_gpu_sees_the_rest_of_sys() -> None:
    hidden = [(step.path, step.source) for step in made(planned()) if step.action is MountAction.HIDE]
    assert sorted(hidden) == [("/proc/bus", "folder"), ("/proc/cmdline", "file")]
    assert "/sys/devices" not in planned().reads
    assert "/sys/devices" in planned(gpu=True).reads
    assert not any(path.startswith("/sys/class/net") for path in planned().reads)


def test_of_opt_only_the_folders_with_the_program_are_seen() -> None:
    assert [path for path in planned().reads if path.startswith("/opt")] == ["/opt/venv", "/opt/venv/lib"]


def test_root_leaves_itself_behind_only_where_there_is_a_nobody() -> None:
    assert linux.holds("0 0 4294967295\n", linux.NOBODY)
    assert linux.holds("0 1000 1\n1 100000 65536\n", linux.NOBODY)
    assert not linux.holds("0 1000 1\n", linux.NOBODY)


def test_what_nobody_can_reach_keeps_a_launch_without_a_view_with_its_user(tmp_path: Path) -> None:
    shut = tmp_path / "shut"
    shut.mkdir(mode=0o700)
    (shut / "model").write_bytes(b"")
    assert not mounts.is_open_to_others(str(shut / "model"))
    assert mounts.is_open_to_others("/usr")
    assert mounts.is_open_to_others("/there/is/none")


def test_every_folder_of_the_view_is_made_before_what_lies_in_it() -> None:
    exists = {"/"}
    for step in made(planned()):
        assert str(Path(step.path).parent) in exists, step
        exists.add(step.path)


def test_a_program_in_one_file_is_seen_by_those_that_read_modules_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pairs = str(Path(sys.executable).parent)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != pairs])
    assert pairs in mounts.code_folders(frozen=True)
    assert pairs not in mounts.code_folders(frozen=False)


def test_only_a_unit_with_a_gpu_sees_its_devices() -> None:
    assert "/dev/nvidia0" in planned(gpu=True).devices
    assert not any("nvidia" in device for device in planned().devices)
    assert not any("sda" in device for device in planned(gpu=True).devices)


def test_only_the_own_folder_may_be_written_to_and_the_model_only_read() -> None:
    rules = dict(mounts.landlock_rules(planned(), in_view=False))
    assert rules["/home/ann/.cache/models/m"] == landlock.READ
    assert rules["/tmp/run"] == landlock.WRITE
    assert sorted(path for path, rights in rules.items() if rights & landlock.MAKE) == ["/tmp/run"]
    assert dict(mounts.landlock_rules(planned(), in_view=True))["/"] == landlock.READ
    assert "/proc" not in rules
    assert "/proc/cmdline" not in rules
    assert rules["/proc/meminfo"] == landlock.READ


# -- macOS and Windows: profile text and calls, with doubles of the systems ---------------------------------------------------


def test_the_profile_of_macos_denies_before_it_allows_what_is_needed() -> None:
    lines = mac.profile(planned()).splitlines()
    assert lines[:2] == ["(version 1)", "(allow default)"]
    assert "(deny network*)" in lines
    assert "(deny process-fork)" in lines
    assert lines.index("(deny file-write*)") < next(
        place for place, line in enumerate(lines) if line.startswith("(allow file-write*")
    )
    assert '(subpath "/private/tmp/run")' in next(
        line for line in lines if line.startswith("(allow file-write*")
    )
    assert '(subpath "/Users")' in next(line for line in lines if line.startswith("(deny file-read*"))


def test_a_path_cannot_write_rules_into_the_profile() -> None:
    odd = mounts.plan('/tmp/a") (allow network*) ("', (), 1, code=(), in_dev=())
    assert "(allow network*)" not in [line.strip() for line in mac.profile(odd).splitlines()]
    assert '\\") (allow network*)' in mac.profile(odd)


class Mac:
    """A double of the system library."""

    def __init__(self, refuses: bool) -> None:
        self.refuses = refuses
        self.profile = b""

    def sandbox_init(self, profile: bytes, flags: Any, error: Any) -> int:
        """Record the profile, or refuse it."""
        self.profile = profile
        return -1 if self.refuses else 0


def test_a_refused_profile_is_no_sandbox() -> None:
    good = Mac(refuses=False)
    mac.enter(good, planned())
    assert b"deny network" in good.profile
    with pytest.raises(OSError, match="refused its profile"):
        mac.enter(Mac(refuses=True), planned())


class Windows:
    """A double of kernel32."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses = refuses
        self.limits = windows.Extended()
        self.CreateJobObjectW = self._answer("create", 11)
        self.GetCurrentProcess = self._answer("current", 12)
        self.AssignProcessToJobObject = self._answer("assign", 1)

    def _answer(self, name: str, value: int) -> Any:
        def called(*_: object) -> int:
            return 0 if name == self.refuses else value

        return called

    def SetInformationJobObject(  # noqa: N802 - the system's name
        self, job: Any, kind: int, information: Any, size: Any
    ) -> int:
        """Record the limits, as kernel32 would."""
        ctypes.memmove(ctypes.byref(self.limits), information, size.value)
        return kind == 9 and job.value == 11


def test_a_job_of_windows_bounds_memory_and_processes_and_ends_together() -> None:
    kernel = Windows()
    windows.enter_job(512 * MIB, kernel)
    assert kernel.limits.process_memory == 512 * MIB
    assert kernel.limits.basic.processes == 1
    assert kernel.limits.basic.flags & windows.KILL_ON_JOB_CLOSE


def test_a_gpu_runtime_has_no_limit_of_memory_in_its_job() -> None:
    assert not windows.limits(None).basic.flags & windows.PROCESS_MEMORY


@pytest.mark.parametrize("step", ["create", "assign"])
def test_a_job_that_cannot_be_created_is_an_error(step: str) -> None:
    with pytest.raises(OSError, match="job of its own"):
        windows.enter_job(MIB, Windows(step))


def test_windows_claims_no_sandbox() -> None:
    tier, reasons = sandbox.probe("win32")
    assert tier is Tier.NONE
    assert "Windows" in reasons[0]


# -- the probe -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reached() -> sandbox.TierProbe:
    """The sandbox tier that this machine reaches."""
    return sandbox.probe()


def test_the_tier_is_what_a_child_experienced_and_less_than_full_has_reasons(
    reached: sandbox.TierProbe,
) -> None:
    tier, reasons = reached
    if tier is Tier.FULL:
        assert sandbox.find_open(tier) == ()
        assert reasons == ()
    else:
        assert reasons


def test_a_child_without_a_sandbox_gets_out_everywhere_so_the_probe_can_see_it() -> None:
    open_ = set(sandbox.find_open(Tier.NONE))
    assert open_ >= {
        "reads_secret",
        "writes_outside",
        "connects",
        "forks",
        "executes",
        "signals",
        "fills_disk",
    }


def held(plan: Tier, got: dict[Tier, tuple[str, ...] | str]) -> Callable[[Tier], tuple[str, ...]]:
    """What children on each tier experience, or the reason why there are none."""

    def experience(tier: Tier) -> tuple[str, ...]:
        answer = got[tier]
        if isinstance(answer, str):
            raise Crashed(answer)
        return answer

    return experience


def test_a_home_that_holds_nothing_but_the_program_has_nothing_to_hide(tmp_path: Path) -> None:
    """A user created for the program alone: every launch sees the path to its code."""
    inside = tmp_path / ".local" / "share"
    inside.mkdir(parents=True)
    order = WorkOrder("model", prober.UNIT, 1, 1, dims={"port": 1, "pid": 1, "size": 1, "root": 0})

    def sees_it(code: tuple[str, ...]) -> bool:
        try:
            prober.SandboxProber(str(tmp_path), code).attempts(order)["reads_home"]()
        except OSError:
            return False
        return True

    assert sees_it(())
    assert not sees_it((str(inside),))
    (tmp_path / "letters").mkdir()
    assert sees_it((str(inside),))


def test_a_system_without_namespaces_is_partial_and_says_what_to_look_at() -> None:
    got: dict[Tier, tuple[str, ...] | str] = {
        Tier.FULL: "a user namespace: Operation not permitted",
        Tier.PARTIAL: ("sees_processes",),
    }
    tier, reasons = sandbox.judge(sandbox.TIERS, held(Tier.FULL, got))
    assert tier is Tier.PARTIAL
    assert "kernel.apparmor_restrict_unprivileged_userns" in reasons[0]
    assert reasons[1] == prober.OPEN["sees_processes"]


def test_a_sandbox_that_leaks_is_not_the_one_it_calls_itself() -> None:
    everything = tuple(prober.OPEN)
    got: dict[Tier, tuple[str, ...] | str] = {Tier.FULL: ("connects",), Tier.PARTIAL: everything}
    tier, reasons = sandbox.judge(sandbox.TIERS, held(Tier.FULL, got))
    assert tier is Tier.NONE
    assert "it can use the network" in reasons[0]


def play(tier: Tier, model: Path) -> list[Event]:
    """Run one order of the scripted driver on a tier."""
    with Zygote("fake", simulate=True, tier=tier) as zygote:
        order = WorkOrder(str(model), UNIT, 4, 1)
        return list(measure(order, Limits(load_s=20, run_s=20), zygote))


def test_a_run_gives_the_same_in_every_tier_that_is_here(tmp_path: Path, reached: sandbox.TierProbe) -> None:
    model = tmp_path / "script.json"
    model.write_text('{"latencies_ms": [1, 2]}')
    tiers = [Tier.NONE]
    if sys.platform == "linux" and reached.tier is not Tier.NONE:
        tiers.append(reached.tier)
    samples = [
        [event.samples_ns for event in play(tier, model) if isinstance(event, MeasureReport)]
        for tier in tiers
    ]
    assert all(sample == samples[0] for sample in samples)


POORER: Final = """
import sys
from drivers.launch import probe_tier as sandbox
from drivers.sandbox import linux as sandbox_linux, seccomp
lib = sandbox_linux.libc()
refused = [seccomp.Rule(name, numbers) for name, numbers in (
    ("unshare", (272, 97)), ("landlock_create_ruleset", (444, 444)), ("seccomp", (317, 277)),
) if name in sys.argv[1:]]
seccomp.no_new_privileges(lib)
seccomp.install(lib, seccomp.program(sandbox_linux.os.uname().machine, refused))
tier, reasons = sandbox.probe()
print(tier)
print("; ".join(reasons))
"""
"""This system with some calls removed."""


@pytest.mark.parametrize(
    ("lacks", "tier"),
    [
        (["unshare"], "partial"),
        (["unshare", "landlock_create_ruleset"], "partial"),
        (["unshare", "seccomp"], "partial"),
        (["unshare", "landlock_create_ruleset", "seccomp"], "none"),
        (["seccomp"], "partial"),
    ],
)
def test_a_poorer_system_gets_the_tier_that_holds_there_and_what_must_be_full_does_not_run(
    reached: sandbox.TierProbe, lacks: list[str], tier: str
) -> None:
    if not linux.is_supported():
        assert reached.tier is not Tier.FULL
        return
    rich = reached.tier is Tier.FULL
    done = subprocess.run(
        [sys.executable, "-P", "-c", POORER, *lacks], capture_output=True, text=True, check=False
    )
    result, reasons = done.stdout.splitlines()
    assert result == tier or not rich, done.stderr
    assert result != "full"
    assert reasons.startswith("no full sandbox: this device could not sandbox the run: ")


def test_no_error_number_is_lost_on_the_way() -> None:
    assert seccomp.REFUSE & 0xFFFF == errno.EPERM
    assert os.strerror(seccomp.ABSENT & 0xFFFF) == os.strerror(errno.ENOSYS)
