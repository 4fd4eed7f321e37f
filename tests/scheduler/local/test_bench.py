"""Models on one device without a swarm. The device here is scripted; tests/node/run/test_local.py tests real measurements."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from protocol.errors import CampaignError
from protocol.formats.phase import Phase
from protocol.values.lease import Fence
from protocol.values.record import (
    DeviceFacts,
    LoadSample,
    Record,
    RunFacts,
    SignedRecord,
    Timing,
    pack_samples,
    record_body,
    record_message,
)
from protocol.values.requirement import Requirement
from protocol.values.rounds import RoundsSample
from protocol.values.task import Measure, Model, Task, Timeouts, task_body
from protocol.words import Reason, RunOutcome
from results.analysis.verify import check_results
from results.export.raw import read_raw
from results.row.comparison import ComparisonVerdict
from scheduler.campaign.model import ModelEntry
from scheduler.cli.bench import add_bench, duration_option, progress_line, share
from scheduler.local.bench import Bench, read_measure, unit_for, units_that_run
from swarm.base.home import Home
from swarm.net.identity import Identity
from tests.tiny_onnx import tiny_onnx

KEY = Identity.from_seed("device")


@dataclass
class Made:
    task: Task
    signed: SignedRecord


@dataclass
class Scripted:
    """File name → time of one inference in µs; models that are not named fail."""

    micros: dict[str, int]
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    asked: list[tuple[str, Measure]] = field(default_factory=list)
    units: tuple[str, ...] = ("CPU (ONNX)",)
    placed: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    """The unit of each measured model, and the units of the models beside it."""

    def measure(
        self,
        path: Path,
        unit: str,
        measure: Measure,
        timeouts: Timeouts | None = None,
        report: Callable[..., None] = print,
        beside: Sequence[Path] = (),
        beside_units: Sequence[str] = (),
    ) -> Made:
        self.placed.append((unit, tuple(beside_units)))
        self.asked.append((path.name, measure))
        micros = self.micros.get(path.name)
        task = Task(
            campaign="bench-1",
            task="bench-1/1",
            scheduler=KEY.peer_id,
            model=Model(name=path.name, sha256="ab" * 32, size=10),
            unit=unit,
            requirement=Requirement(),
            measure=measure,
            timeouts=Timeouts(),
            beside=tuple(Model(name=one.name, sha256="cd" * 32, size=10) for one in beside) or None,
            beside_units=tuple(beside_units) or None,
        )
        facts: dict[str, Any] = {
            "outcome": RunOutcome.FAILED,
            "reason": Reason.BROKEN_MODEL,
            "detail": "no graph",
        }
        if micros is not None:
            turn = len(self.asked)
            facts = {
                "outcome": RunOutcome.COMPLETE,
                "ran": RunFacts(
                    unit=unit, driver="onnx", runtime="r", shapes={"x": self.shapes.get(path.name, (1,))}
                ),
                "loads": (LoadSample(ns=1),) * measure.loads,
                "timings": (
                    Timing(
                        samples=pack_samples(
                            [micros * 1000 + turn * 7 + number % 5 for number in range(measure.runs)]
                        ),
                        warmup=pack_samples([1]),
                        cpu_s=0.1,
                        wall_s=0.1,
                    ),
                ),
            }
            if beside:
                facts |= self._turns(unit, [self.micros[one.name] for one in beside], micros)
        body = record_body(
            Record(
                campaign="bench-1",
                task="bench-1/1",
                attempt=1,
                fence=Fence(incarnation=0, number=1),
                worker=KEY.peer_id,
                task_sha256=hashlib.sha256(task_body(task)).hexdigest(),
                model_sha256=task.model.sha256,
                device=DeviceFacts(device="d", name="here"),
                **facts,
            )
        )
        return Made(task, SignedRecord(body=body, signature=KEY.sign(record_message(body))))

    def _turns(self, unit: str, beside: Sequence[int], own: int) -> dict[str, Any]:
        """Six launches of ten rounds; in every third round all wall times are longer."""
        sides = [
            [micros * 1000 * (3 if number % 3 == 0 else 2) // 2 + number for number in range(10)]
            for micros in (*beside, own)
        ]
        wall = tuple(map(pack_samples, sides))
        cpu = tuple(pack_samples([micros * 1000] * 10) for micros in (*beside, own))
        timing = Timing(samples=wall[-1], warmup=pack_samples([1]), cpu_s=0.1, wall_s=0.1, per_sample=2)
        rounds = RoundsSample(wall=wall, cpu=cpu, per_block=(1,) * len(sides), turns=2)
        return {
            "loads": (LoadSample(ns=1),) * 6,
            "timings": (timing,) * 6,
            "rounds": (rounds,) * 6,
            "ran_beside": (RunFacts(unit=unit, driver="onnx", runtime="r", shapes={"x": (1,)}),)
            * len(beside),
        }

    def close(self) -> None:
        """Nothing: no process runs."""


def test_an_unknown_unit_is_refused_with_a_suggestion() -> None:
    with Bench(Scripted({"a.onnx": 500})) as bench:
        with pytest.raises(CampaignError, match="there is no unit 'CPU \\(ONX\\)'") as wrong:
            bench.measure("a.onnx", "CPU (ONX)")
        assert "did you mean 'CPU (ONNX)'?" in wrong.value.hint


def test_a_models_numbers_are_those_of_a_campaigns_row() -> None:
    with Bench(Scripted({"a.onnx": 500})) as bench:
        result = bench.measure("a.onnx", runs=20, loads=1)
    assert result.complete
    assert result.median_ms == pytest.approx(0.5, rel=0.001)
    assert result.interval_ms is None, "one launch says nothing of how launches differ"
    assert len(result.launches_ns[0]) == 20
    assert result.as_dict()["InferenceMsMedian"] == result.median_ms
    assert result.raw().signature == result.signed.signature.hex()


def test_a_model_that_fails_is_a_measurement_that_says_why() -> None:
    result = Bench(Scripted({})).measure("b.onnx")
    assert not result.complete
    assert (result.median_ms, result.why) == (None, "no graph")


@pytest.mark.parametrize(
    ("micros", "word"),
    [(1050, ComparisonVerdict.SLOWER), (1000, ComparisonVerdict.SAME), (950, ComparisonVerdict.FASTER)],
)
def test_two_models_take_turns_and_the_ratio_is_of_the_second_to_the_first(
    micros: int, word: ComparisonVerdict
) -> None:
    device = Scripted({"a.onnx": 1000, "b.onnx": micros})
    compared, done = Bench(device).compare("a.onnx", "b.onnx", threads=1)
    assert compared.verdict is word
    assert compared.ratio == pytest.approx(micros / 1000, rel=0.002)
    assert compared.cpu is not None
    assert compared.cpu.ratio == pytest.approx(micros / 1000)
    assert compared.medians_ms == pytest.approx((1.0, micros / 1000), rel=0.002)
    assert [name for name, _ in device.asked] == ["b.onnx"], "one task of both"
    row = done.row
    assert (row.file_name, row.against, row.compare_verdict) == ("b.onnx", "a.onnx", word)
    assert (row.ratio, row.cpu_ratio, row.contention) == (compared.ratio, compared.cpu.ratio, None)


def test_models_of_two_units_are_compared_in_a_process_each() -> None:
    device = Scripted({"a.onnx": 1000, "b.pt2": 1050}, units=("CPU (ONNX)", "CPU (Torch)"))
    bench = Bench(device)
    compared, done = bench.compare("a.onnx", "b.pt2")
    assert compared.verdict is ComparisonVerdict.SLOWER
    bench.compare("a.onnx", "a.onnx", "CPU (Torch)", first_unit="CPU (ONNX)")
    bench.compare("a.onnx", "b.pt2", "CPU (Torch)")
    apart = ("CPU (Torch)", ("CPU (ONNX)",))
    assert device.placed == [apart, apart, ("CPU (Torch)", ())]
    assert (done.row.against, done.row.against_unit) == ("a.onnx", "CPU (ONNX)")
    assert done.row.compare_reason.endswith("; each in a process of its own")
    with pytest.raises(CampaignError, match=r"models cannot take turns on API \(OpenAI\)"):
        bench.compare("a.onnx", "w.yaml")


def test_what_cannot_be_compared_says_why() -> None:
    device = Scripted({"a.onnx": 10, "b.onnx": 10})
    with pytest.raises(CampaignError, match=r"a\.onnx and c\.onnx cannot be compared: no graph"):
        Bench(device).compare("a.onnx", "c.onnx")
    with pytest.raises(CampaignError, match="chooses its own runs"):
        Bench(device).compare("a.onnx", "b.onnx", runs=5)


def test_a_comparison_is_one_signed_result_that_can_be_exported_and_verified(tmp_path: Path) -> None:
    app = typer.Typer()
    add_bench(app, lambda home, simulate: Scripted({"a.onnx": 1000, "b.onnx": 1050}))
    models = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for model in models:
        model.write_bytes(tiny_onnx())
    csv, raw = tmp_path / "rows.csv", tmp_path / "raw.json"
    done = CliRunner().invoke(
        app, [*map(str, models), "--compare", "--csv", str(csv), "--raw", str(raw)], obj=Home.at(tmp_path)
    )
    assert done.exit_code == 0, done.exception
    assert "SLOWER: wall time 1.050" in done.output
    results = read_raw(raw.read_bytes())
    (finding,) = check_results("bench-1", results)
    assert finding.wrong == ()
    row = results[0].row
    assert row.compare_verdict in csv.read_text("utf-8")
    forged = results[0].model_copy(update={"row": row.model_copy(update={"ratio": 1.0})})
    assert "Ratio" in str(check_results("bench-1", [forged])[0].wrong)


def test_two_units_of_a_comparison_belong_to_the_models_in_order(tmp_path: Path) -> None:
    units = ("CPU (ONNX)", "OpenVINO (ONNX)")
    device = Scripted({"a.onnx": 1000}, units=units)
    app, model = typer.Typer(), tmp_path / "a.onnx"
    add_bench(app, lambda home, simulate: device)
    model.write_bytes(tiny_onnx())
    command = [str(model), str(model), "--compare", "--unit", units[0], "--unit", units[1]]
    done = CliRunner().invoke(app, command, obj=Home.at(tmp_path))
    assert done.exit_code == 0, done.exception
    assert (
        "a.onnx on OpenVINO (ONNX) (1 ms) compared with a.onnx on CPU (ONNX) (1 ms), in two processes: SAME:"
        in " ".join(done.output.split())
    )
    assert device.placed == [(units[1], units[:1])]
    shown = CliRunner().invoke(app, [*command, "--json"], obj=Home.at(tmp_path)).stdout
    answer = json.loads(shown)
    assert (answer["first_unit"], answer["unit"], answer["processes"]) == (*units, 2)
    done = CliRunner().invoke(app, [*command, "--unit", units[0]], obj=Home.at(tmp_path))
    assert isinstance(done.exception, CampaignError)
    assert "at most two units" in str(done.exception)


def test_what_cannot_be_asked_for_is_refused_with_what_can() -> None:
    with pytest.raises(CampaignError, match="runs") as error:
        read_measure({"runs": 0})
    assert "precision" in error.value.hint
    with pytest.raises(CampaignError, match="speed"):
        read_measure({"speed": 1})
    with pytest.raises(CampaignError, match="until it is reached"):
        read_measure({"precision": 0.02, "runs": 3})
    with pytest.raises(
        CampaignError, match="sustain_s sets how long to measure and cannot be combined with loads and runs"
    ):
        read_measure({"sustain_s": 60.0, "runs": 3, "loads": 1})
    for alone in ({"sustain_s": 60.0}, {"loads": 1}, {"runs": 23}):
        with pytest.raises(CampaignError, match="over spreads launches"):
            read_measure({"over_s": 60.0, **alone})
    assert read_measure({"over_s": 60.0, "runs": 24}).over_s == 60
    assert read_measure({"over_s": 60.0, "precision": 0.02}).over_s == 60
    with pytest.raises(CampaignError) as error:
        read_measure({"precision": "2%"})
    assert "0.02" in error.value.hint


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        ((Phase.PREPARE, 3, 10, None), "waits for other work on the device to end, 3 of at most 10 s"),
        ((Phase.PREPARE, 0, None, None), "prepare"),
        ((Phase.WARM_UP, 4, None, None), "warm-up 4"),
        ((Phase.RUN, 17, 100, 9.164), "run 17/100, 9.16 ms"),
    ],
)
def test_progress_is_shown_in_words(progress: tuple[Phase, int, int | None, float | None], line: str) -> None:
    assert progress_line(*progress) == line


def test_an_ending_tells_the_unit_or_a_unit_has_to_be_named() -> None:
    assert unit_for(Path("x/M.ONNX")) == "CPU (ONNX)"
    assert unit_for(Path("m.tflite")) == "CPU (LiteRT)"
    assert unit_for(Path("m.pte")) == "CPU (ExecuTorch)"
    assert unit_for(Path("workload.yaml")) == "API (OpenAI)"
    with pytest.raises(CampaignError, match=r"model model\.bin: no unit"):
        unit_for(Path("model.bin"))
    with pytest.raises(CampaignError, match=r"model \.: no unit"):
        unit_for(Path())


def test_all_units_are_those_that_run_the_models_format() -> None:
    here = ["CPU (ONNX)", "CPU (Torch)", "CPU (LiteRT)", "NPU (Mine)"]
    assert units_that_run(Path("m.onnx"), here) == ["CPU (ONNX)", "NPU (Mine)"]
    assert units_that_run(Path("m.tflite"), here) == ["CPU (LiteRT)", "NPU (Mine)"]
    assert units_that_run(Path("m.bin"), [*here, "API (OpenAI)"]) == here
    assert units_that_run(Path("m.pt"), here) == ["CPU (Torch)"]
    assert units_that_run(Path("m.json"), [*here, "API (OpenAI)"]) == ["API (OpenAI)"]


@pytest.mark.parametrize(
    ("text", "value"), [("2%", 0.02), ("0.5", 0.005), (" 100 %".replace(" %", "%"), 1.0)]
)
def test_a_precision_is_written_in_percent(text: str, value: float) -> None:
    assert share(text) == pytest.approx(value)


def test_how_long_to_sustain_is_written_with_its_unit() -> None:
    assert duration_option("sustain", "10m") == 600
    assert duration_option("over", "2m") == 120
    for text, hint in (("10", "such as 500ms, 90s, 10m"), ("1s", "between 5 s and 4 h")):
        with pytest.raises(CampaignError, match="--sustain") as error:
            duration_option("sustain", text)
        assert hint in error.value.hint
    with pytest.raises(CampaignError, match="--over: over 5h is out of range"):
        duration_option("over", "5h")


@pytest.mark.parametrize("text", ["0", "-1%", "101%", "fast", "nan"])
def test_a_precision_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(CampaignError, match="precision"):
        share(text)


def test_progress_is_printed_beside_the_table(tmp_path: Path) -> None:
    app = typer.Typer()
    add_bench(app, lambda home, simulate: Scripted({"a.onnx": 500}))
    model = tmp_path / "a.onnx"
    model.write_bytes(tiny_onnx())
    done = CliRunner().invoke(app, [str(model), "--runs", "20", "--loads", "1"], obj=Home.at(tmp_path))
    assert done.exit_code == 0
    assert done.stderr == "measuring a.onnx on CPU (ONNX) …\n"
    assert "a.onnx" in done.stdout
    quiet = CliRunner().invoke(
        app, [str(model), "--runs", "20", "--loads", "1", "--json"], obj=Home.at(tmp_path)
    )
    assert quiet.stderr == ""


def test_a_model_is_fetched_by_its_url_and_held_against_its_sha256(tmp_path: Path) -> None:
    stored = tmp_path / "downloads" / "0badcafe"
    stored.parent.mkdir()
    stored.write_bytes(b"a model")
    requests: list[str | None] = []

    def fetch(entry: ModelEntry) -> Path:
        requests.append(entry.url)
        return stored

    device = Scripted({"a.onnx": 500})
    bench = Bench(device, fetch=fetch, folder=tmp_path)
    good = hashlib.sha256(b"a model").hexdigest()
    assert bench.measure("https://example.org/a.onnx", sha256=good, runs=5).complete
    assert (
        bench.compare("https://example.org/a.onnx", "https://example.org/a.onnx")[0].verdict
        is ComparisonVerdict.SAME
    )
    assert requests == ["https://example.org/a.onnx"] * 3, "once for each model, not for each launch"
    assert {name for name, _ in device.asked} == {"a.onnx"}
    for model in ("https://example.org/a.onnx", str(stored)):
        with pytest.raises(CampaignError, match="has the sha256"):
            bench.measure(model, "CPU (ONNX)", sha256="0" * 64)
