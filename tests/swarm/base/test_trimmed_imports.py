"""libp2p and structlog without the parts that a node never uses."""

from __future__ import annotations

import subprocess
import sys

import pytest

from swarm.base.trimmed_imports import BARE, EXCLUDED_MODULES

UNUSED = (
    "aioquic",
    "Crypto",
    "coincurve",
    "dns",
    "requests",
    "prometheus_client",
    "trio_websocket",
    "libp2p.kad_dht.kad_dht",
)
"""Modules that libp2p 0.8.1 imports and a node does not need."""


def of_program(program: str) -> list[str]:
    """The words that a program prints, run in a separate interpreter."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_node_imports_nothing_that_it_never_uses() -> None:
    imported = of_program("import swarm.join.node, sys; print(*sys.modules)")
    assert "libp2p.host.basic_host" in imported
    assert sorted(set(imported) & {*UNUSED, "zeroconf", "httpx"}) == []


def test_libp2p_by_itself_imports_all_of_it_so_that_this_is_still_needed() -> None:
    assert set(of_program("import libp2p, sys; print(*sys.modules)")) >= set(UNUSED)


def test_a_worker_does_not_import_what_draws_tables_until_it_draws_one() -> None:
    program = """import swarm, node.serve.process, structlog, sys
before = "rich" in sys.modules
import rich.console
print(before, rich.console.Console.__name__, structlog.dev.ConsoleRenderer.__name__)"""
    assert of_program(program) == ["False", "Console", "ConsoleRenderer"]


def test_structlog_by_itself_imports_it_so_that_this_is_still_needed() -> None:
    assert "rich.traceback" in of_program("import structlog, sys; print(*sys.modules)")


def test_each_name_is_one_that_libp2p_still_has() -> None:
    names = sorted({*BARE, *EXCLUDED_MODULES})
    program = f"import importlib.util as u; print(*[name for name in {names!r} if u.find_spec(name) is None])"
    assert of_program(program) == []


def test_a_package_that_was_left_bare_has_its_names_for_whoever_asks() -> None:
    program = """import swarm, libp2p.transport, sys
before = "libp2p.transport.tcp.tcp" in sys.modules
from libp2p.transport import TCP
print(before, TCP.__name__)"""
    assert of_program(program) == ["False", "TCP"]


@pytest.mark.parametrize("kind", ["rsa.RSAPublicKey", "secp256k1.Secp256k1PublicKey"])
def test_a_key_of_a_kind_that_is_left_out_is_refused_as_a_key_that_cannot_be_read(kind: str) -> None:
    module, name = kind.split(".")
    program = f"""import swarm
from libp2p.exceptions import BaseLibp2pError
from libp2p.crypto.{module} import {name} as key
try: key.from_bytes(b"")
except BaseLibp2pError as error: print(error)"""
    assert of_program(program)[0] == f"libp2p.crypto.{kind}"


def test_an_error_of_what_is_left_out_is_waited_for_and_never_comes() -> None:
    program = """import swarm
from libp2p.transport.quic.exceptions import QUICStreamError
try: raise OSError("broken")
except (QUICStreamError, OSError) as error: print(error, isinstance(error, QUICStreamError))"""
    assert of_program(program) == ["broken", "False"]


def test_what_others_import_of_the_same_packages_is_the_real_one() -> None:
    assert of_program("import swarm.join.node, requests, dns; print(requests.__name__, dns.__name__)") == [
        "requests",
        "dns",
    ]


def test_a_second_copy_of_the_package_in_one_process_asks_the_first_and_not_itself_again() -> None:
    program = """import sys, swarm
for name in [name for name in sys.modules if name.split(".")[0] == "swarm"]: del sys.modules[name]
import swarm, libp2p.transport
print(libp2p.transport.__name__, "aioquic" in sys.modules)
from libp2p.transport import TCP"""
    assert of_program(program) == ["libp2p.transport", "False"]
