"""`bench --on`: one command measures a model and prints a matrix of the workers that answer. Ctrl-C cancels what it began."""

from __future__ import annotations

import re
import signal
import subprocess

import pytest

from scheduler.store.rows import CampaignStatus
from scheduler.store.store import open_store
from tests.real.lab import TIMEOUT_S, Lab, script, until

UNIT = ("--unit", "Fake (Simulation)")


@pytest.fixture
def one_machine(lab: Lab) -> Lab:
    """A lab in which Ada knows that both workers are on this machine."""
    one, two = map(lab.worker_peer, lab.workers)
    peers = lab.run("ada", "peers", "--json", "--gate", lab.gate).json()["peers"]
    (device,) = {peer["device"] for peer in peers}
    for words in ((one, "--device", device), (two, "--same-device-as", one)):
        done = lab.run("ada", "trust", *words)
        assert done.code == 0, done
    return lab


@pytest.mark.slow
def test_one_command_measures_on_every_worker_and_writes_the_report(one_machine: Lab) -> None:
    lab = one_machine
    model = script(lab.folder, "net.json", latencies_ms=[2.0])
    bench = ("bench", model, *UNIT, "--gate", lab.gate, "--runs", "5", "--loads", "1")
    done = lab.run("ada", *bench, "--on", "all", "--spread", "worker", "--report", "out.html")
    assert done.code == 0, done
    assert "Measuring on 2 workers: one, two" in done.err
    assert "This machine has no worker and is left out" in done.err
    assert re.search(r"^ +one\b.* two\b.*$", done.out, re.MULTILINE), done.out
    assert re.search(r"Fake \(Simulation\) +\*2 +\*2$", done.out, re.MULTILINE), done.out
    report = (lab.folder / "ada" / "out.html").read_text(encoding="utf-8")
    assert "net.json" in report
    by_device = lab.run("ada", *bench, "--on", "all", "--json")
    assert [row["Status"] for row in by_device.json()["results"]] == ["Complete"], "one machine counts once"
    none = lab.run("ada", *bench, "--on", "ram >= 64 TiB")
    assert (none.code, none.out) == (3, "")
    assert "ram >= 64 TiB" in none.err
    assert "Smallest change: ram >= " in none.err


@pytest.mark.slow
def test_ctrl_c_cancels_what_bench_began(one_machine: Lab) -> None:
    lab = one_machine
    model = script(lab.folder, "long.json", latencies_ms=[50.0], sleep=True)
    command = ("bench", model, *UNIT, "--on", "all", "--gate", lab.gate, "--runs", "20000", "--loads", "1")
    log = lab.folder / "interrupted.log"
    with log.open("wb") as out:
        bench = subprocess.Popen(
            lab.command("ada", *command),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=lab.environment("ada"),
        )
    try:
        until(lambda: ": run" in log.read_text(), "it measures")
        bench.send_signal(signal.SIGINT)
        assert bench.wait(TIMEOUT_S) == 130
    finally:
        bench.kill()
    words = re.search(r"(c-\w+) is being cancelled", log.read_text())
    assert words, log.read_text()

    def cancelled() -> bool:
        with open_store(lab.home("ada")) as store:
            row = store.campaigns.get(words[1])
        return row is not None and row.outcome is CampaignStatus.CANCELLED

    until(cancelled, "the campaign is cancelled")
