"""`sark-node invite` and `join TICKET` between two homes without a gate: real processes, over loopback."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from swarm.join.known_gates import worker_addresses
from swarm.net.identity import load_or_create
from tests.real.lab import TIMEOUT_S, Lab, campaign, marked, script, until

LISTEN = ("--listen", "/ip4/127.0.0.1/tcp/0")


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[Lab]:
    """Homes in which nothing runs yet; the worker's home trusts nobody."""
    lab = Lab(tmp_path, schedulers=())
    try:
        yield lab
    finally:
        lab.close()
    until(lambda: not marked(lab.mark), "nothing is left")


@contextmanager
def inviting(lab: Lab, *words: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Run `invite` in the home `ada`; also gives the command that it prints for the other device."""
    with subprocess.Popen(
        lab.command("ada", "invite", *LISTEN, *words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=lab.environment("ada"),
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().split()
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and standard error of a command that ends by itself."""
    _, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, err


@pytest.mark.smoke
def test_one_ticket_makes_trust_mutual_and_nobody_runs_a_gate(homes: Lab, tmp_path: Path) -> None:
    with inviting(homes) as (process, command):
        assert command[:2] == ["sark-node", "join"]
        homes.start(
            "shed", *command[1:], "--name", "shed", "--simulate", "--on-battery", "--no-calibrate", *LISTEN
        )
        code, err = ended(process)
    worker = load_or_create(homes.home("shed").key("worker")).peer_id
    assert code == 0, err
    assert "waiting for the device; Ctrl-C withdraws the ticket" in err
    assert f"shed joined: {worker}" in err
    homes.await_up("shed")
    until(
        lambda: "the home that invited this device lists it as a member now" in homes.log("shed"),
        "the device knows it",
    )
    listed = homes.run("ada", "pool", "members", "home", "--json").json()
    assert [(m["name"], m["role"], m["until"]) for m in listed["members"]] == [
        ("owner", "submit", None),
        ("shed", "worker", None),
    ]
    assert listed["members"][1]["device"]
    (way_in,) = worker_addresses(homes.home("shed"))
    file = campaign(tmp_path, "first", [script(tmp_path, "m.json")], measure={"runs": 2, "loads": 1})
    done = homes.run("ada", "submit", file, "--json", "--gate", way_in)
    assert done.code == 0, done


def test_a_ticket_withdrawn_by_ctrl_c_admits_nobody_and_the_device_says_what_to_do(homes: Lab) -> None:
    with inviting(homes) as (process, command):
        process.send_signal(signal.SIGINT)
        code, err = ended(process)
    assert (code, "The ticket is withdrawn; 0 of 1 joined." in err) == (130, True), err
    homes.start("shed", *command[1:], "--simulate", "--on-battery", "--no-calibrate", *LISTEN)
    until(lambda: "not in pool home yet" in homes.log("shed"), "the device says so")
    assert "must still be waiting there: sark-node invite" in homes.log("shed")
    homes.await_up("shed")


def test_a_revoked_ticket_ends_the_wait(homes: Lab) -> None:
    with inviting(homes) as (process, _):
        (ticket,) = homes.run("ada", "pool", "members", "home", "--json").json()["tickets"]
        assert homes.run("ada", "pool", "revoke", "home", ticket["id"]).code == 0
        code, err = ended(process)
    assert code == 5
    assert "the ticket was revoked; 0 of 1 joined" in err


def test_a_device_that_allows_a_submitter_says_what_that_one_has_to_do(homes: Lab) -> None:
    homes.start(
        "shed", "join", "--allow", homes.peer("ada"), "--simulate", "--on-battery", "--no-calibrate", *LISTEN
    )
    homes.await_up("shed")
    worker = load_or_create(homes.home("shed").key("worker")).peer_id
    until(lambda: f"send them this command: sark-node trust {worker}" in homes.log("shed"), "it says so")
