"""The commands that need no network: what they print, where they write, and their exit codes."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

import sark
from protocol.errors import Unreachable
from protocol.values.attempt import TaskEvent
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Model, Task, Timeouts
from scheduler.cli.options import answering_gates
from scheduler.core.commands import EndPending
from scheduler.store.rows import NewCampaign, NewModel
from scheduler.store.store import Store
from swarm.base.home import Home
from swarm.join.known_gates import write_addresses
from swarm.net.identity import Identity
from tests.cli.conftest import Typed
from tests.tiny_onnx import tiny_onnx

COMMANDS = (
    "init",
    "validate",
    "submit",
    "watch",
    "campaigns",
    "results",
    "peers",
    "cancel",
    "info",
    "calibrate",
    "doctor",
    "join",
    "gate",
    "demo",
)


def model(folder: Path) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(tiny_onnx(shape=("N", 4)))
    return path


def plain(folder: Path, **more: object) -> Path:
    path = folder / "campaign.yaml"
    content: dict[str, object] = {
        "campaign": "c",
        "models": [model(folder).name],
        "units": ["CPU (ONNX)"],
        "devices": {"spread": "any"},
    }
    path.write_text(json.dumps(content | more), encoding="utf-8")
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_that_begins_with_what_it_does(typed: Typed, command: str) -> None:
    done = typed(command, "--help")
    assert done.code == 0
    words = done.out.split(f"Usage: sark-node {command} ", 1)[1].splitlines()[1:]
    first = next(line for line in words if line.strip())
    assert len(first.split()) >= 4, first
    assert first.strip()[0].isupper()
    assert done.err == ""


@pytest.mark.parametrize(("word", "meant"), [("devices", "peers"), ("run", "submit")])
def test_another_word_for_a_command_leads_to_it(typed: Typed, word: str, meant: str) -> None:
    done = typed(word)
    assert done.code == 2
    assert f"No such command '{word}'. Did you mean '{meant}'?" in done.err


def test_a_size_that_is_typed_for_one_model_is_asked_once_and_counts_for_all_that_have_the_input(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for path in models:
        path.write_bytes(tiny_onnx(path.name, ("N", "height")))
    asked: list[str] = []
    measured: list[dict[str, object]] = []

    def answer(question: str, *_: object, **__: object) -> str:
        asked.append(question)
        return f"1,{7 + len(asked)}"

    def measure_on(
        ctx: object, models: object, on: object, units: object, options: object, **_: object
    ) -> None:
        assert isinstance(options, dict)
        measured.append(options)
        raise SystemExit(0)

    monkeypatch.setattr("scheduler.cli.bench.typer.prompt", answer)
    monkeypatch.setattr("scheduler.cli.bench.measure_on", measure_on)
    for stream in ("stdin", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True, raising=False)
    assert typed("bench", *models, "--on", "all", "--unit", "CPU (ONNX)", "--unit", "GPU (CUDA)").code == 0
    assert asked == ["shape of x"]
    assert [options["shapes"] for options in measured] == [{"x": (1, 8)}]


def test_the_version_is_shown_by_the_program_and_by_info(typed: Typed) -> None:
    output = typed("--version")
    assert output.code == 0
    name, number = output.out.split()
    assert name == "sark-node"
    listed = typed("info", "--attributes").out.splitlines()
    assert any(line.startswith("version ") and line.rstrip().endswith(f" {number}") for line in listed)


def test_help_shows_the_defaults_that_are_written_out(typed: Typed) -> None:
    bench = " ".join(typed("bench", "--help").out.replace("│", " ").split())
    assert "[default: 100]" in bench
    assert "[default: the CPU]" in bench
    assert "[default: the latest]" in " ".join(typed("watch", "--help").out.replace("│", " ").split())


def test_the_programs_help_names_every_command_and_every_exit_code(typed: Typed) -> None:
    done = typed("--help")
    assert done.code == 0
    assert all(f"│ {command} " in done.out for command in COMMANDS)
    assert "130 interrupted" in " ".join(done.out.split())


def test_the_programs_help_begins_with_a_few_commands_to_start_with(typed: Typed) -> None:
    options, first, *others = typed("--help").out.split("╭─ ")[1:]
    assert options.startswith("Options ")
    assert first.startswith("Start here ")
    named = [
        word for line in first.splitlines()[1:] if (word := line.removeprefix("│ ").split(" ")[0]).isalpha()
    ]
    assert named == list(sark.START)
    assert len(others) >= 5


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("frobnicate",), "frobnicate"),
        (("campaigns", "--frobnicate"), "--frobnicate"),
        (("--log-level", "loud", "campaigns"), "--log-level"),
        (("submit",), "file"),
        (("gate", "--port", "70000"), "--port"),
    ],
)
def test_a_wrong_word_is_named_and_nothing_is_done(typed: Typed, words: tuple[str, ...], named: str) -> None:
    done = typed(*words)
    assert done.code == 2
    assert named in done.err
    assert done.out == ""
    assert not typed.home.exists()


def test_init_writes_a_file_to_start_from_and_never_over_another(typed: Typed) -> None:
    target = typed.folder / "mine.yaml"
    assert typed("init", target).code == 0
    written = target.read_text(encoding="utf-8")
    assert "campaign:" in written
    again = typed("init", target)
    assert again.code == 2
    assert "already exists" in again.err
    assert target.read_text(encoding="utf-8") == written
    nowhere = typed("init", typed.folder / "no" / "such" / "folder.yaml")
    assert nowhere.code == 2
    assert "No such file" in nowhere.err


def test_validate_says_what_would_be_measured(typed: Typed) -> None:
    measure = {"runs": 7, "loads": 2, "threads": [1, 2, "physical"]}
    file = plain(typed.folder, devices={"spread": "any"}, measure=measure)
    done = typed("validate", file)
    assert done.code == 0
    assert "m.onnx" in done.out
    assert "CPU (ONNX)" in done.out
    assert "c is valid: 3 tasks." in done.out
    head, *lines = [line.split() for line in done.out.splitlines()[:4]]
    assert head == ["model", "size", "sha256", "unit", "threads", "shape", "runs", "loads"]
    assert [line[-4:] for line in lines] == [[n, "1×4", "7", "2"] for n in ("1", "2", "physical")]
    assert lines[0][1:3] == [str(len(tiny_onnx(shape=("N", 4)))), "B"]
    document = json.loads(typed("validate", file, "--json").out)
    assert document["tasks"] == 3
    assert document["models"]["m.onnx"]["size"] == len(tiny_onnx(shape=("N", 4)))
    assert not typed.stored


def test_validate_does_not_guess_how_many_devices_there_are(typed: Typed) -> None:
    file = plain(typed.folder, devices={"spread": "device"})
    assert "depends on the matching devices" in typed("validate", file).out
    assert json.loads(typed("validate", file, "--json").out)["tasks"] is None


def test_a_home_without_campaigns_says_how_to_begin(typed: Typed) -> None:
    done = typed("campaigns")
    assert done.code == 0
    assert "sark-node init" in done.out
    assert json.loads(typed("campaigns", "--json").out) == {"count": 0, "campaigns": []}


@pytest.mark.parametrize("words", [("results",), ("watch",), ("results", "c-nobody"), ("cancel", "c-nobody")])
def test_a_missing_campaign_is_reported_with_where_to_look(typed: Typed, words: tuple[str, ...]) -> None:
    done = typed(*words)
    assert done.code == 2
    assert "no campaign" in done.err
    assert ("sark-node campaigns" if len(words) > 1 else "sark-node init") in done.err
    assert done.out == ""


def test_an_invalid_setting_is_reported_with_its_origin(typed: Typed) -> None:
    config = typed.home / "config" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[worker]\nslots = "many"\n', encoding="utf-8")
    done = typed("join")
    assert done.code == 2
    assert str(config) in done.err
    assert "slots" in done.err
    config.write_text("[worker]\nslotz = 3\n", encoding="utf-8")
    done = typed("join")
    assert done.code == 2
    assert "slotz" in done.err
    assert "slots" in done.err


def test_a_label_without_a_value_is_bad_input(typed: Typed) -> None:
    done = typed("join", "--label", "lab")
    assert done.code == 2
    assert "--label site=lab" in done.err


def test_a_duration_without_a_unit_is_bad_input(typed: Typed) -> None:
    done = typed("submit", plain(typed.folder), "--wait", "90")
    assert done.code == 2
    assert "--wait" in done.err
    assert "90s" in done.err
    assert not typed.stored


def test_a_clause_that_cannot_be_read_is_bad_input(typed: Typed, listener: str) -> None:
    done = typed("peers", "memory >= 8", "--gate", listener)
    assert done.code == 2
    assert "memory" in done.err


def nobody() -> str:
    """A gate's address on which nobody listens."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port = opened.getsockname()[1]
    return f"/ip4/127.0.0.1/tcp/{port}/p2p/12D3KooWQNbstzW71KUwiMn5QQ2sG2t72UM5TJt353kFtC9TUBhK"


def test_a_gate_that_does_not_answer_is_reported_before_anything_is_stored(typed: Typed) -> None:
    gate = nobody()
    done = typed("submit", plain(typed.folder), "--gate", gate)
    assert done.code == 4
    assert f"no gate answers: {gate}" in done.err
    assert done.out == ""
    assert not typed.stored


def test_where_no_gate_answers_peers_that_were_known_lately_are_ways_in(tmp_path: Path) -> None:
    home, gate = Home.at(tmp_path), nobody()
    ctx = SimpleNamespace(obj=home, meta={"environment": {"SARK_GATES": gate, "SARK_LAN": "false"}})
    with pytest.raises(Unreachable, match=f"^no gate answers: {gate}$"):
        answering_gates(ctx, None)  # type: ignore[arg-type]
    with socket.create_server(("127.0.0.1", 0)) as worker:
        known = f"/ip4/127.0.0.1/tcp/{worker.getsockname()[1]}/p2p/{Identity.from_seed('worker').peer_id}"
        home.folder("scheduler").mkdir(parents=True)
        write_addresses(home.peers_file("scheduler"), [known])
        assert answering_gates(ctx, None) == (gate, known)  # type: ignore[arg-type]
        with pytest.raises(Unreachable, match=f"^no gate answers: {gate}$"):
            answering_gates(ctx, [gate])  # type: ignore[arg-type]


def test_a_wrong_campaign_file_is_reported_before_an_absent_swarm(typed: Typed) -> None:
    done = typed("submit", typed.folder / "none.yaml")
    assert done.code == 2
    assert "no such file" in done.err


def test_no_gate_at_all_is_reported_with_how_to_start_one(typed: Typed) -> None:
    for command in (("submit", plain(typed.folder)), ("peers",)):
        done = typed(*command)
        assert done.code == 4
        assert "no gate is known" in done.err
        assert "sark-node gate" in done.err
        assert done.out == ""
    assert not typed.stored


@pytest.mark.parametrize("command", ["submit", "peers", "join"])
def test_a_gate_that_is_no_address_is_bad_input(typed: Typed, command: str) -> None:
    words = [command, plain(typed.folder)] if command == "submit" else [command]
    done = typed(*words, "--gate", "gate.example:4101")
    assert done.code == 2
    assert "--gate" in done.err
    assert "gate.example:4101" in done.err
    assert "/ip4/" in done.err
    assert not typed.stored


def test_piped_tables_are_neither_cut_nor_coloured_nor_read_as_markup(typed: Typed) -> None:
    name = "[bold red]" + "m" * 70 + "[_red].onnx"
    (typed.folder / name).write_bytes(tiny_onnx())
    done = typed("validate", plain(typed.folder, models=[name]))
    assert done.code == 0
    assert name in done.out
    assert "\x1b" not in done.out


def test_info_says_what_this_device_is_and_whom_to_allow(typed: Typed) -> None:
    document = json.loads(typed("info", "--json").out)
    assert "CPU (ONNX)" in [unit["unit"] for unit in document["units"]]
    assert document["ram"] > 0
    shown = typed("info")
    assert shown.code == 0
    assert f"join --allow {document['scheduler']}" in shown.out


def test_a_csv_that_could_not_be_written_at_the_end_is_refused_at_the_beginning(
    typed: Typed, listener: str
) -> None:
    file = plain(typed.folder)
    done = typed("submit", file, "--detach", "--csv", "z.csv", "--gate", listener)
    assert done.code == 2
    assert "sark-node results ID --csv z.csv" in done.err
    nowhere = typed.folder / "no" / "such"
    for words in (("submit", file, "--gate", listener), ("watch",)):
        done = typed(*words, "--csv", nowhere / "x.csv")
        assert done.code == 6
        assert f"there is no folder {nowhere}" in done.err
    assert not typed.stored
    assert not nowhere.parent.exists()


def ended(typed: Typed) -> None:
    """Store a campaign with one task that was cancelled before any worker got it."""
    me = Identity.from_seed("scheduler").peer_id
    task = Task(
        campaign="c-ended",
        task="c-ended/1",
        scheduler=me,
        model=Model(name="m.onnx", sha256="ab" * 32, size=10),
        unit="CPU (ONNX)",
        requirement=Requirement(),
        measure=Measure(),
        timeouts=Timeouts(),
    )
    with Store(Home.at(typed.home).store) as store:
        store.campaigns.create(
            NewCampaign("c-ended", "ended", me, "{}"), [NewModel("m.onnx", "ab" * 32, 10)], [task]
        )
        store.attempts.end_pending(EndPending(["c-ended/1"], TaskEvent.CANCEL))
        store.campaigns.end("c-ended")


def test_a_dash_is_standard_output_for_raw_samples_too(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    ended(typed)
    monkeypatch.chdir(typed.folder)
    done = typed("results", "--raw", "-")
    assert done.code == 0
    assert json.loads(done.out)["campaign"] == "c-ended"
    assert not (typed.folder / "-").exists()
    assert typed("results", "--raw", "-", "--csv", "-").code == 2


def test_a_campaign_that_has_ended_is_shown_and_not_called_safe(typed: Typed) -> None:
    ended(typed)
    target = typed.folder / "late.csv"
    done = typed("watch", "--csv", target)
    assert "runs by itself" not in done.out
    assert "c-ended/1" in target.read_text(encoding="utf-8")


def test_an_experiment_is_kept_shown_compared_and_cloned_as_a_newcomer_types_it(typed: Typed) -> None:
    file = plain(typed.folder)
    assert "nightly@1 is saved" in typed("experiment", "save", file, "--name", "nightly").out
    assert "is unchanged" in typed("experiment", "save", file, "--name", "nightly").out
    plain(typed.folder, measure={"runs": 7})
    assert "nightly@2 is saved" in typed("experiment", "save", file, "--name", "nightly").out
    assert "+  runs: 7" in typed("experiment", "diff", "nightly@1", "nightly@2").out
    assert "nightly" in typed("experiment", "list").out
    clone = typed(
        "experiment", "clone", "nightly@1", "--set", "measure.batch=[1,8]", "--set", "campaign=more"
    )
    assert clone.code == 0
    again = typed.folder / "again.yaml"
    again.write_text(clone.out, encoding="utf-8")
    checked = typed("validate", again)
    assert (checked.code, "more is valid: 2 tasks." in checked.out) == (0, True)
    wrong = typed("experiment", "clone", "nightly", "--set", "measure.batch=8")
    assert (wrong.code, wrong.out) == (2, "")
    assert "the changed campaign is invalid: measure.batch" in wrong.err
    assert "is removed" in typed("experiment", "remove", "nightly").out


def test_a_gate_listens_where_one_option_says(typed: Typed) -> None:
    done = typed("gate", "--port", "4103", "--listen", "/ip4/127.0.0.1/tcp/4104")
    assert done.code == 2
    assert "--port and --listen both say where to listen" in done.err
    assert "--listen /ip4/0.0.0.0/tcp/4103" in done.err
