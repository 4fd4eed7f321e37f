"""Types every command of the README and of the guides, in order, against real processes on one machine.

Placeholders (FILE, CAMPAIGN, a gate's address) are filled in, and endless commands get an end; nothing else is changed. The demo and the
installation are tested elsewhere (test_demo.py, tests/packages).
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import onnx
import pytest

from tests.browser.site import network
from tests.real.lab import TIMEOUT_S, kill_marked
from tests.real.reader import Reader
from tests.swarm.web_parts import web_beside

ROOT: Final = Path(__file__).parents[2]
README: Final = ("README.md",)
GUIDES: Final = tuple(f"docs/{name}.md" for name in ("campaigns", "bench", "pools", "devices"))

ELSEWHERE: Final = {
    "sark-node demo": "test_demo.py",
    "sark-node watch CAMPAIGN": "needs two homes with one key: test_adopt.py",
    "sark-node adopt CAMPAIGN --key scheduler.key": "test_adopt.py",
    "sark-node delegate CAMPAIGN --to SCHEDULER_ID": "test_adopt.py",
    "sark-node adopt CAMPAIGN --token TOKEN": "test_adopt.py",
    "sark-node pool revoke home shed": "needs a device that joined: tests/cli/test_invite_command.py",
    "sark-node trust KEY --same-device-as OTHER_KEY": "needs two workers of one machine: tests/cli/test_trust_command.py",
}
"""Commands that are not typed here, and the tests that cover them."""
HOMES: Final = {
    "sark-node join --allow": "friend",
    "sark-node join --owner": "device",
    "sark-node join TICKET": "pooled",
    "sark-node pool join TICKET": "user",
    "sark-node drain": "device",
}
"""Command prefix → the home on which such commands are typed; all others are typed on the first home."""
ENDS: Final = {"sark-node top": "sark-node top --once", "sark-node serve": "sark-node serve --port 0"}
"""Endless commands, or commands with a port that may be taken → what is typed instead."""
CODES: Final = {"sark-node doctor": (0, 6), "sark-node retry": (0, 2)}
"""Further accepted exit codes: this machine may have a problem, and nothing has failed that could be retried."""


def commands(page: str) -> Iterator[str]:
    """Every command of a page, in order, from its code blocks and table cells."""
    fenced, kind = False, ""
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            fenced, kind = not fenced, line.removeprefix("```")
        elif fenced and not kind and line.startswith("sark-node"):
            yield bare(line)
        elif not fenced and line.startswith("| "):
            yield from (bare(span) for span in re.findall(r"`(sark-node [^`]+)`", line))


def bare(line: str) -> str:
    """The command without its comment and its optional parts."""
    line = re.split(r"\s+# ", line)[0]
    while (shorter := re.sub(r"\s*\[[^\[\]]*\]", "", line)) != line:
        line = shorter
    return line.strip()


class Typist:
    """Types commands, and remembers the output of earlier ones."""

    def __init__(self, reader: Reader, site: str) -> None:
        self.reader = reader
        self.known = {
            "https://example.org": site,
            "FILE": "mine.yaml",
            "examples/quickstart/campaign.yaml": str(ROOT / "examples" / "quickstart" / "campaign.yaml"),
        }
        self.tickets: dict[bool, str] = {}
        """Whether a ticket admits a submitter → the ticket."""
        self.typed: list[str] = []

    def type(self, line: str) -> None:
        """Type one command on its home."""
        self.learn_before(line)
        home = next((home for start, home in HOMES.items() if line.startswith(start)), "home")
        filled = ENDS.get(line, line)
        for word, value in self.known.items():
            filled = filled.replace(word, value)
        filled = filled.replace("TICKET", self.tickets.get("pool" in line, ""))
        words = shlex.split(filled)[1:]
        if words[0] == "serve":
            process = self.reader.stay(words, says="http://127.0.0.1:")
            process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT_S) in (0, 130)
        elif words[0] in ("gate", "join"):
            if line not in self.typed:  # a gate that a page starts twice is still running
                self.reader.stay(words, home)
        else:
            self.learn(line, self.reader.type(words, home, codes=CODES.get(line, (0,))))
        self.typed.append(line)

    def learn_before(self, line: str) -> None:
        """Look up the values that this line needs."""
        json_of = lambda *words: json.loads(self.reader.type([*words, "--json"]))  # noqa: E731
        if "SCHEDULER_ID" in line:
            self.known["SCHEDULER_ID"] = json_of("info")["scheduler"]
        elif "laptop-7" in line:
            self.known["laptop-7"] = json_of("pool", "members", "lab")["members"][0]["name"]
        elif line.startswith("sark-node compare raw-monday"):
            for day in ("monday", "friday"):
                shutil.copy(self.reader.folder / "raw.json", self.reader.folder / f"raw-{day}.json")
        elif "--plan HASH" in line:
            self.known["HASH"] = json_of("plan", "mine.yaml")["plan"]
        elif "CAMPAIGN --verify" in line:
            ids = [row["campaign_id"] for row in json_of("campaigns")["campaigns"]]
            self.known["CAMPAIGN"] = self.known["c-ab23cd45"] = ids[0]
            self.known["c-qa7a4agj"] = ids[1]
            self.known["ID..."] = ids[0]
            self.known["HASH"] = json_of("events", ids[0])["events"][-1]["hash"]

    def learn(self, line: str, output: str) -> None:
        """Remember the output of this line."""
        if line.startswith("sark-node pool invite"):
            self.tickets["--submit" in line] = output.split()[-1]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    for name in ("model.onnx", "old.onnx", "new.onnx"):
        model = onnx.load(str(network(tmp_path, name, 64)))
        model.producer_name = name  # equivalent models with different bytes
        onnx.save(model, str(tmp_path / name))
    campaign = "campaign: mine\nmodels: [model.onnx]\nunits: [CPU (ONNX)]\nmeasure: {runs: 20, loads: 1}\n"
    for name in ("campaign.yaml", "mine.yaml"):
        (tmp_path / name).write_text(campaign, encoding="utf-8")
    (tmp_path / "prices.yaml").write_text("currency: EUR\nper_hour: {vm: 0.1}\n", encoding="utf-8")
    yield reader
    kill_marked(reader.mark)
    for process in reader.staying:
        process.wait(TIMEOUT_S)


def type_all(reader: Reader, pages: tuple[str, ...], first: tuple[str, ...] = ()) -> None:
    with web_beside() as site:
        site.file("/net.onnx", (reader.folder / "model.onnx").read_bytes())
        typist = Typist(reader, f"http://127.0.0.1:{site.port}")
        for line in (*first, *(line for page in pages for line in commands(page))):
            if line not in ELSEWHERE:
                typist.type(line)


@pytest.mark.smoke
def test_every_command_of_the_readme_works_in_its_order(reader: Reader) -> None:
    type_all(reader, README)
    assert (reader.folder / "report.html").stat().st_size > 1000


def test_every_command_of_the_guides_works_in_its_order(reader: Reader) -> None:
    ready = (
        "sark-node gate",
        "sark-node join",
        "sark-node submit campaign.yaml",
        "sark-node submit mine.yaml",
    )
    type_all(reader, GUIDES, ready)
    for name in ("rows.csv", "raw.json", "now.md", "slide.svg", "results.parquet"):
        assert (reader.folder / name).stat().st_size > 100, name


@pytest.mark.smoke
def test_what_is_tested_elsewhere_stands_on_a_page() -> None:
    assert set(ELSEWHERE) <= {line for page in (*README, *GUIDES) for line in commands(page)}
