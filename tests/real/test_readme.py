"""The README as somebody who types it: every command of it, in its order, against real processes on one machine.

What stands for something of the reader's (FILE, CAMPAIGN, a gate's address) is filled in, what has no end by itself is given one, and
nothing else is changed. `make demo` and the installation are tested elsewhere (test_demo.py, tests/packages).
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
from tests.real.lab import PATIENCE_S, kill_marked
from tests.real.reader import Reader
from tests.swarm.web_parts import web_beside

ROOT: Final = Path(__file__).parents[2]
README: Final = ROOT / "README.md"

ELSEWHERE: Final = {
    "sark-node watch CAMPAIGN": "needs two homes with one key: test_adopt.py",
    "sark-node adopt CAMPAIGN --key scheduler.key": "test_adopt.py",
    "sark-node delegate CAMPAIGN --to SCHEDULER_ID": "test_adopt.py",
    "sark-node adopt CAMPAIGN --token TOKEN": "test_adopt.py",
}
"""Commands that are not run here, and where they are."""
HOMES: Final = {
    "sark-node join --gate": "device",
    "sark-node join TICKET": "pooled",
    "sark-node pool join TICKET": "user",
    "sark-node drain": "device",
}
"""Whose home a command that begins so is typed on, where it is not the first one's."""
ENDS: Final = {"sark-node top": "sark-node top --once", "sark-node serve": "sark-node serve --port 0"}
"""What has no end by itself, or takes a port that somebody else may have."""
CODES: Final = {"sark-node doctor": (0, 6), "sark-node retry": (0, 2)}
"""Ends that are right here: something may be bad on this machine; nothing has failed that could be run again."""


def commands() -> Iterator[str]:
    """Every command of the page as it stands there, in its order: of the blocks, and of the tables' cells."""
    fenced, kind = False, ""
    for line in README.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            fenced, kind = not fenced, line.removeprefix("```")
        elif fenced and not kind and line.startswith("sark-node"):
            yield bare(line)
        elif not fenced and line.startswith("| "):
            yield from (bare(span) for span in re.findall(r"`(sark-node [^`]+)`", line))


def bare(line: str) -> str:
    """Without its comment, and without what may be left out."""
    line = re.split(r"\s+# ", line)[0]
    while (shorter := re.sub(r"\s*\[[^\[\]]*\]", "", line)) != line:
        line = shorter
    return line.strip()


class Typist:
    """Types the page's commands, and knows what earlier ones told."""

    def __init__(self, reader: Reader, site: str) -> None:
        self.reader = reader
        self.known = {
            "https://example.org": site,
            "FILE": "mine.yaml",
            "examples/quickstart/campaign.yaml": str(ROOT / "examples" / "quickstart" / "campaign.yaml"),
        }
        self.tickets: dict[bool, str] = {}
        """One for who submits, and one for a device."""
        self.typed: list[str] = []

    def type(self, line: str) -> None:
        """One command, on the home that it is for."""
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
            assert process.wait(PATIENCE_S) in (0, 130)
        elif words[0] in ("gate", "join"):
            if line not in self.typed:  # the page says so twice of the gate: it is there still
                self.reader.stay(words, home)
        else:
            self.learn(line, self.reader.type(words, home, codes=CODES.get(line, (0,))))
        self.typed.append(line)

    def learn_before(self, line: str) -> None:
        """What the reader looks up before typing this line."""
        json_of = lambda *words: json.loads(self.reader.type([*words, "--json"]))  # noqa: E731
        if "/ip4/192.0.2.7" in line:
            found = re.search(r"/ip4/\S+/p2p/12D3Koo\w+", self.reader.said(["gate"]))
            assert found is not None
            self.known["/ip4/192.0.2.7/tcp/4101/p2p/12D3Koo…"] = found[0]
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

    def learn(self, line: str, said: str) -> None:
        """What this line told."""
        if line == "sark-node info":
            self.known["YOUR_SCHEDULER_ID"] = json.loads(self.reader.type(["info", "--json"]))["scheduler"]
        elif line.startswith("sark-node pool invite"):
            self.tickets["--submit" in line] = said.split()[-1]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    for name in ("model.onnx", "old.onnx", "new.onnx"):
        model = onnx.load(str(network(tmp_path, name, 64)))
        model.producer_name = name  # files of the same work, that are not the same
        onnx.save(model, str(tmp_path / name))
    campaign = "campaign: mine\nmodels: [model.onnx]\nunits: [CPU (ONNX)]\nmeasure: {runs: 20, loads: 1}\n"
    for name in ("campaign.yaml", "mine.yaml"):
        (tmp_path / name).write_text(campaign, encoding="utf-8")
    (tmp_path / "prices.yaml").write_text("currency: EUR\nper_hour: {vm: 0.1}\n", encoding="utf-8")
    yield reader
    kill_marked(reader.mark)
    for process in reader.staying:
        process.wait(PATIENCE_S)


def test_every_command_of_the_readme_works_in_its_order(reader: Reader) -> None:
    with web_beside() as site:
        site.file("/net.onnx", (reader.folder / "model.onnx").read_bytes())
        typist = Typist(reader, f"http://127.0.0.1:{site.port}")
        for line in commands():
            if line not in ELSEWHERE:
                typist.type(line)
    for name in ("rows.csv", "raw.json", "now.md", "slide.svg", "results.parquet"):
        assert (reader.folder / name).stat().st_size > 100, name


def test_what_is_run_elsewhere_stands_in_the_readme() -> None:
    assert set(ELSEWHERE) <= set(commands())
