"""The sites are what they claim to be, as plain sockets see them. Otherwise the tests that use them would prove nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.nat.topology import NAMES, Sites, sweep
from tests.real.lab import TIMEOUT_S, until

LISTEN = """
import socket
with socket.create_server(("0.0.0.0", 7000)) as server:
    print("listening", flush=True)
    while True:
        met, (host, port) = server.accept()
        met.sendall(f"{host} {port}".encode())
        met.close()
"""
DIAL = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000), float(sys.argv[3]), ("0.0.0.0", int(sys.argv[2]))) as met:
    print(met.recv(100).decode())
"""


@contextmanager
def listening(world: Sites, host: str) -> Iterator[None]:
    command = [*world.inside(host), sys.executable, "-IS", "-c", LISTEN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "listening\n"
        yield
        server.kill()


def dialled(world: Sites, host: str, address: str, port: int = 0, within: float = TIMEOUT_S) -> str:
    """The address under which the other host saw this one; empty when it could not be reached within `within` seconds."""
    command = [*world.inside(host), sys.executable, "-IS", "-c", DIAL, address, str(port), str(within)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def test_who_is_behind_a_router_gets_out_under_its_address_and_keeps_its_port(world: Sites) -> None:
    with listening(world, "gate-1"):
        assert dialled(world, "anna", world.addresses["gate-1"], 7001) == "10.99.0.101 7001"
        assert dialled(world, "ben", world.addresses["gate-1"]).startswith("10.99.0.102 ")


def test_behind_a_restless_router_no_connection_keeps_its_port(world: Sites) -> None:
    with listening(world, "gate-1"):
        address, port = dialled(world, "rita", world.addresses["gate-1"], 7001).split()
    assert address == "10.99.0.103"
    assert port != "7001"


@pytest.mark.smoke
def test_nobody_outside_gets_in(world: Sites) -> None:
    with listening(world, "anna"):
        for address in (world.addresses["anna"], "10.99.0.101"):
            assert dialled(world, "gate-1", address, within=1) == ""
            assert dialled(world, "ben", address, within=1) == ""


def test_hosts_of_one_site_reach_each_other(world: Sites) -> None:
    with listening(world, "lena"):
        address = world.addresses["leo"]
        assert dialled(world, "leo", world.addresses["lena"]).startswith(f"{address} ")


def test_a_cut_host_is_silent_until_it_is_mended(world: Sites) -> None:
    address = world.addresses["gate-2"]
    with listening(world, "gate-2"):
        world.cut("gate-2")
        assert dialled(world, "anna", address, within=1) == ""
        world.mend("gate-2")
        assert dialled(world, "anna", address) != ""


def test_what_a_killed_run_left_goes_and_what_lives_stays(world: Sites) -> None:
    left = NAMES.format(pid=2**31, number=0) + "here"  # no system has a pid this high
    subprocess.run(["ip", "netns", "add", left], check=True)
    with subprocess.Popen(["ip", "netns", "exec", left, "sleep", "100"]) as lingering:
        until(
            lambda: subprocess.run(["ip", "netns", "pids", left], capture_output=True, check=True).stdout,
            "it is inside",
        )
        sweep()
        assert lingering.wait(TIMEOUT_S) != 0
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert left not in names
    assert f"{world.tag}anna" in names
