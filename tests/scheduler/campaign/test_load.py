"""Campaign files: the meaning of each good one, and the line, the message and the hint for each bad one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import CampaignError
from protocol.values.advert import Advert, UnitOffer
from protocol.values.match import match
from protocol.values.requirement import Requirement
from scheduler.campaign.fields import parse_duration
from scheduler.campaign.load import MAX_CELLS, load_campaign, parse_campaign
from scheduler.campaign.model import Campaign, Devices
from scheduler.campaign.text import (
    SCHEMA_FILE,
    campaign_schema,
    campaign_text,
    read_spec,
    schema_text,
    starter_campaign,
)
from swarm.base.units import duration_text

HEAD = "campaign: trial\nmodels: [a.onnx]\nunits: [CPU (ONNX)]\n"
WHOLE = """\
campaign: vision-on-the-edge
models:
  - mobilenet.onnx
  - name: yolo
    path: models/tinyyolov2-7.onnx
    sha256: {digest}
    dims: {{batch: 1, H: 416, W: 416}}
units: [CPU (ONNX), GPU (CoreML)]
devices:
  where:
    - ram >= 8 GiB
    - soc ~ "Apple M*"
    - label.site == lab
  spread: class
  limit: 20
measure:
  runs: 200
  loads: 1
  warmup: 12
  threads: [physical, 4]
  seed: 7
  check: none
  dims: {{batch: 2}}
replicas: 1
priority: 80
timeouts: {{queue: 10m, fetch: 500ms, load: 1m, run: 1.5h, campaign: 2h}}
retry: {{attempts: 5, backoff: 2s}}
"""


def good(text: str, file: str = "c.yaml") -> Campaign:
    return parse_campaign(text.encode(), file)


def outcome(data: bytes) -> Campaign | CampaignError:
    """The campaign or the error; any other exception fails the test."""
    try:
        return parse_campaign(data, "c.yaml")
    except CampaignError as exc:
        return exc


def bad(text: str, file: str = "c.yaml") -> CampaignError:
    with pytest.raises(CampaignError) as caught:
        parse_campaign(text.encode(), file)
    return caught.value


def test_every_key_of_a_campaign_is_read() -> None:
    campaign = good(WHOLE.format(digest="ab" * 32))
    assert [model.label for model in campaign.models] == ["mobilenet.onnx", "yolo"]
    assert campaign.models[1].dims == {"batch": 1, "H": 416, "W": 416}
    assert campaign.units == ("CPU (ONNX)", "GPU (CoreML)")
    assert [str(clause) for clause in campaign.devices.clauses()] == [
        "ram >= 8 GiB",
        "soc ~ Apple M*",
        "label.site == lab",
    ]
    assert (campaign.devices.spread, campaign.devices.limit) == ("class", 20)
    measure = campaign.measure
    assert (measure.runs, measure.loads, measure.warmup, measure.threads) == (200, 1, 12, ("physical", 4))
    assert (measure.seed, measure.check, measure.dims) == (7, "none", {"batch": 2})
    limits = campaign.timeouts
    assert (limits.queue, limits.fetch, limits.load, limits.run, limits.campaign) == (
        600,
        0.5,
        60,
        5400,
        7200,
    )
    assert (campaign.retry.attempts, campaign.retry.backoff, campaign.priority) == (5, 2, 80)


def test_sittings_are_an_hour_apart_unless_it_says_otherwise_and_one_is_not_stored() -> None:
    head = "campaign: t\nmodels: [a]\nunits: [CPU (ONNX)]\n"
    assert good(head + "measure: {sittings: 3}\n").measure.gaps_s == 7200
    assert good(head + "measure: {sittings: 2, apart: 10m}\n").measure.gaps_s == 600
    assert "sittings" not in good(head).spec(), "older homes may carry it on"
    assert "apart" not in good(head).spec()


def test_three_lines_are_a_campaign() -> None:
    campaign = good(HEAD)
    assert campaign.devices.spread == "device"
    assert (campaign.measure.runs, campaign.measure.loads, campaign.measure.warmup) == (100, 6, "auto")
    assert campaign.timeouts.campaign is None


def test_replicas_say_themselves_on_how_many_devices_a_task_runs() -> None:
    assert good(HEAD + "replicas: 2\n").devices.spread == "any"
    given = good(HEAD + "replicas: 2\ndevices: {where: [ram >= 8 GiB], spread: class}\n").devices
    assert (given.spread, given.where) == ("class", ("ram >= 8 GiB",))
    made = Campaign(campaign="t", models=("a",), units=("CPU (ONNX)",), devices=Devices(limit=2), replicas=2)  # type: ignore[arg-type]
    assert (made.devices.spread, made.devices.limit) == ("any", 2)


def test_a_campaign_that_was_stored_when_any_was_the_default_stays_so() -> None:
    stored = good(HEAD + "devices: {spread: any}\n").spec()
    assert read_spec(stored, "c-1").devices.spread == "any"
    assert "spread: any" in campaign_text(read_spec(stored, "c-1"))
    assert "spread" not in campaign_text(good(HEAD))


def test_a_campaign_whose_models_have_units_of_their_own_is_read_again_as_it_was_stored() -> None:
    own = good("campaign: t\nmodels: [{path: a, units: [CPU (ONNX)]}]\n")
    for again in (read_spec(own.spec(), "c-1"), good(campaign_text(own))):
        assert (again.spec(), again.lines()) == (own.spec(), own.lines())


def test_a_campaign_survives_being_stored() -> None:
    campaign = good(WHOLE.format(digest="ab" * 32))
    again = Campaign.model_validate_json(campaign.model_dump_json())
    assert again.model_dump() == campaign.model_dump()


@pytest.mark.parametrize(
    ("text", "line", "what", "hint"),
    [
        # keys
        (HEAD + "unit: [x]\n", 4, "unknown key 'unit'", "did you mean 'units'?"),
        ("campaign: t\nmodels: [a]\nunit: [x]\n", 3, "unknown key 'unit'", "did you mean 'units'?"),
        (HEAD + "seed: 3\n", 4, "unknown key 'seed'", "did you mean measure.seed?"),
        (HEAD + "iterations: 30\n", 4, "unknown key 'iterations'", "did you mean measure.runs?"),
        (HEAD + "measure:\n  repeats: 3\n", 5, "unknown key 'repeats'", "did you mean 'runs'?"),
        (
            "campaign: t\nmodels:\n  - {path: a, shapes: {x: [1]}}\nunits: [x]\n",
            3,
            "unknown key 'shapes'",
            "did you mean 'inputs'?",
        ),
        (HEAD + "zzz: 3\n", 4, "unknown key 'zzz'", "keys here: campaign, models, units"),
        (HEAD + "measure:\n  runs: 5\n  load: 3\n", 6, "unknown key 'load'", "did you mean 'loads'?"),
        (HEAD + "timeouts:\n  fetc: 1s\n", 5, "unknown key 'fetc'", "did you mean 'fetch'?"),
        ("campaign: t\nunits: [CPU (ONNX)]\n", 1, "the key 'models' is missing", "add models"),
        (
            "campaign: t\nmodels:\n - pth: a\nunits: [CPU (ONNX)]\n",
            3,
            "unknown key 'pth'",
            "did you mean 'path'?",
        ),
        (HEAD + "jobs: []\n", 4, "jobs can be combined with model_url", "units:"),
        # precision, steps
        (HEAD + "measure: {precision: 2}\n", 4, "the precision 2 has no percent sign", "2%, 0.5%"),
        (HEAD + "measure: {precision: two}\n", 4, "'two' is not a percentage", "2%, 0.5%"),
        (
            HEAD + "measure: {precision: 60%}\n",
            4,
            "the precision 60% is out of range",
            "between 0.1% and 50%",
        ),
        (
            HEAD + "measure:\n  runs: 5\n  precision: 2%\n",
            6,
            "measure.precision decides when to stop and cannot be combined with measure.runs",
            "remove measure.runs, or precision",
        ),
        (
            HEAD + "measure:\n  loads: 3\n  sustain: 10m\n",
            6,
            "measure.sustain sets how long to measure and cannot be combined with measure.loads",
            "remove measure.loads, or sustain",
        ),
        (
            HEAD + "measure: {precision: 2%, sustain: 10m}\n",
            4,
            "cannot be combined with measure.precision",
            "remove measure.precision, or sustain",
        ),
        (
            HEAD + "measure: {over: 2m, sustain: 10m}\n",
            4,
            "measure.over spreads launches over time and cannot be combined with measure.sustain",
            "remove one of the two",
        ),
        (
            HEAD + "measure: {over: 2m, runs: 23}\n",
            4,
            "23 runs in 6 loads are timed in one launch",
            "use at least 2 loads, and 4 runs for each of them",
        ),
        (
            HEAD + "measure: {over: 2m}\ndevices: {trust: anyone}\n",
            4,
            "measure.over cannot be used on strangers' devices",
            "leave out devices.trust",
        ),
        (
            HEAD.replace("CPU (ONNX)", "API (OpenAI)") + "measure: {over: 2m}\n",
            4,
            "measure.over cannot be used with API (OpenAI)",
            "a campaign of its own",
        ),
        (
            HEAD + "measure: {over: 4h}\ntimeouts: {campaign: 1h}\n",
            4,
            "measure.over is 4 h, but timeouts.campaign is 1 h",
            "a longer timeouts.campaign",
        ),
        (
            HEAD + "measure: {over: 500ms}\n",
            4,
            "over 500ms is out of range",
            "between 1 s and 4 h, such as 2m",
        ),
        (HEAD + "measure: {sustain: 10}\n", 4, "the duration 10 has no unit", "such as 10s"),
        (
            HEAD + "measure: {sustain: 1s}\n",
            4,
            "sustain 1s is out of range",
            "between 5 s and 4 h, such as 10m",
        ),
        (
            HEAD.replace("CPU (ONNX)", "API (OpenAI)") + "measure: {sustain: 10m}\n",
            4,
            "measure.sustain cannot be used with API (OpenAI)",
            "a campaign of its own",
        ),
        (HEAD + "precision: 2%\n", 4, "unknown key 'precision'", "did you mean measure.precision?"),
        (
            HEAD + "measure:\n  pre:\n    - {step: normalize}\n",
            6,
            "pre 1: there is no step 'normalize'",
            "normalise",
        ),
        (
            HEAD + "measure:\n  post: [softmax, {step: top_k}]\n",
            5,
            "post 2: top_k needs the option k",
            "step",
        ),
        (HEAD + "measure:\n  pre: [{step: clip, low: 0, hi: 1}]\n", 5, "clip has no option 'hi'", "step"),
        # later versions
        (HEAD + "measure: {prepare: [x]}\n", 4, "prepare is not supported in this version", ""),
        (HEAD + "replicas: 17\n", 4, "replicas must be at most 16, not 17", ""),
        (
            HEAD + "devices: {spread: device}\nreplicas: 2\n",
            5,
            "replicas have no meaning with spread: device, which runs each task on every device",
            "use spread: class (or any), or remove replicas",
        ),
        # models by URL
        (
            "campaign: t\nmodels:\n  - url: ftp://x.org/a.onnx\nunits: [CPU (ONNX)]\n",
            3,
            "not a URL that can be",
            "hf",
        ),
        (
            "campaign: t\nmodels: ['http://me:pw@x.org/a']\nunits: [CPU (ONNX)]\n",
            2,
            "a password before @",
            "",
        ),
        ("campaign: t\nmodels: ['https://0x7f.1/a']\nunits: [CPU (ONNX)]\n", 2, "unusual spelling", ""),
        ("campaign: t\nmodels: ['hf://a/b']\nunits: [CPU (ONNX)]\n", 2, "hf://ORG/REPO", ""),
        (
            "campaign: t\nmodels: ['https://x.org']\nunits: [CPU (ONNX)]\n",
            2,
            "does not end in a file's name",
            "name",
        ),
        (
            "campaign: t\nmodels:\n  - {path: 'https://x.org/a'}\nunits: [CPU (ONNX)]\n",
            3,
            "this path is a URL",
            "write url:",
        ),
        (
            "campaign: t\nmodels:\n  - {package: magika, url: 'https://x.org/a'}\nunits: [CPU (ONNX)]\n",
            3,
            "from a package or from a URL",
            "remove one",
        ),
        # sorts of values
        (
            "campaign: 2024\nmodels: [a]\nunits: [CPU (ONNX)]\n",
            1,
            "campaign must be text, not 2024",
            "quotes",
        ),
        ("campaign: ../x\nmodels: [a]\nunits: [CPU (ONNX)]\n", 1, "campaign must be at most 64 letters", ""),
        (HEAD + "priority: high\n", 4, "priority must be a whole number, not 'high'", ""),
        (HEAD + "priority: 101\n", 4, "priority must be at most 100, not 101", ""),
        (HEAD + "priority:\n", 4, "priority must be a whole number, not None", ""),
        (HEAD + "measure:\n  runs: ten\n", 5, "measure.runs must be a whole number, not 'ten'", ""),
        (HEAD + "measure:\n  runs: 1.5\n", 5, "measure.runs must be a whole number", ""),
        (HEAD + "measure:\n  runs: true\n", 5, "measure.runs must be a whole number, not True", ""),
        (HEAD + "measure:\n  runs: 0\n", 5, "measure.runs must be at least 1, not 0", ""),
        (HEAD + "measure:\n  threads: 4\n", 5, "measure.threads must be a list, not 4", "write [4]"),
        (HEAD + "measure:\n  threads: []\n", 5, "measure.threads must not be empty", ""),
        (
            HEAD + "measure:\n  threads:\n   - physical\n   - 0\n",
            7,
            "threads 2 must be 'physical' or at least 1",
            "",
        ),
        (HEAD + "measure: {threads: [2, 2]}\n", 4, "threads 2 is listed twice", ""),
        (
            HEAD + "measure:\n  warmup: autoo\n",
            5,
            "warmup must be 'auto' or a whole number",
            "did you mean 'auto'?",
        ),
        (
            HEAD + "measure:\n  check: referenc\n",
            5,
            "check must be 'reference' or 'none'",
            "did you mean 'reference'?",
        ),
        (HEAD + "measure:\n  dims: {H: big}\n", 5, "measure.dims.H must be a whole number", ""),
        (
            HEAD + "measure:\n  dims: {H: -4}\n",
            5,
            "measure.dims.H must be at least 0",
            "a size must be 0 or more",
        ),
        (HEAD + "measure: [runs]\n", 4, "measure must be a mapping", "key: value"),
        (HEAD + "retry: 3\n", 4, "retry must be a mapping", "key: value"),
        (HEAD + "timeouts: {queue: 10}\n", 4, "the duration 10 has no unit", "such as 10s"),
        (HEAD + "timeouts: {run: 3 minutes}\n", 4, "'3 minutes' is not a duration", "10m"),
        (HEAD + "timeouts: {run: 0s}\n", 4, "the duration 0s is out of range", ""),
        (HEAD + "timeouts: {run: 900d}\n", 4, "the duration 900d is out of range", ""),
        # devices
        (
            HEAD + "devices:\n  where:\n   - rma >= 8 GiB\n",
            6,
            "unknown attribute 'rma'",
            "did you mean 'ram'?",
        ),
        (HEAD + "devices:\n  where:\n   - ram >= lots\n", 6, "'lots' is not a size", "8 GiB"),
        (HEAD + "devices:\n  where:\n   - ram: 8 GiB\n", 6, "devices.where 1 must be text", ""),
        (HEAD + "devices:\n  where: ram >= 8 GiB\n", 5, "devices.where must be a list", ""),
        (HEAD + "devices: {where: ['name == " + "x" * 250 + "']}\n", 4, "clause", ""),
        (
            HEAD + "devices:\n  spread: clas\n",
            5,
            "devices.spread must be 'any', 'class', 'device' or 'worker'",
            "'class'",
        ),
        (
            HEAD + "devices:\n  spread: any\n  limit: 3\n",
            6,
            "limit has no meaning with spread: any",
            "remove spread: any, or limit",
        ),
        # models and units
        ("campaign: t\nmodels: []\nunits: [CPU (ONNX)]\n", 2, "models must not be empty", ""),
        ("campaign: t\nmodels: [a]\nunits: []\n", 3, "units must not be empty", ""),
        ("campaign: t\nmodels: a\nunits: [CPU (ONNX)]\n", 2, "models must be a list, not 'a'", ""),
        ("campaign: t\nmodels:\n - 3\nunits: [CPU (ONNX)]\n", 3, "models 1 must be a mapping", ""),
        ("campaign: t\nmodels:\n - name: x\nunits: [CPU (ONNX)]\n", 3, "a model needs a path", "add path"),
        ("campaign: t\nmodels:\n - ..\nunits: [CPU (ONNX)]\n", 3, "does not end in a file's name", "name:"),
        (
            "campaign: t\nmodels:\n - a\n - b/a\nunits: [CPU (ONNX)]\n",
            4,
            "two models are called 'a'",
            "name:",
        ),
        ("campaign: t\nmodels:\n - {path: a, name: x/y}\nunits: [CPU (ONNX)]\n", 3, "without /", ""),
        (
            'campaign: t\nmodels:\n - {path: a, name: "x\\u202ey"}\nunits: [CPU (ONNX)]\n',
            3,
            "invisible characters",
            "",
        ),
        (
            "campaign: t\nmodels:\n - {path: a, sha256: XYZ}\nunits: [CPU (ONNX)]\n",
            3,
            "64 hexadecimal digits",
            "",
        ),
        (
            "campaign: t\nmodels:\n - {path: a, package: os.path}\nunits: [CPU (ONNX)]\n",
            3,
            "Python package",
            "",
        ),
        (
            "campaign: t\nmodels: [a]\nunits:\n - CPU (ONNX)\n - CPU (Onx)\n",
            5,
            "unknown compute unit 'CPU (Onx)'",
            "did you mean 'CPU (ONNX)'?  units: CPU (ONNX), GPU (ONNX)",
        ),
        (
            "campaign: t\nmodels: [a]\nunits: [CPU (ONNX), CPU (ONNX)]\n",
            3,
            "'CPU (ONNX)' is listed twice",
            "",
        ),
        # sittings
        (
            "campaign: t\nmodels: [a]\nunits: [CPU (ONNX)]\nmeasure:\n  apart: 1h\n",
            5,
            "measure.apart is the time between sittings, but there is only one",
            "add sittings: 3 under measure, or remove apart",
        ),
        (
            "campaign: t\nmodels: [a]\nunits: [CPU (ONNX)]\nmeasure:\n  sittings: 3\ntimeouts: {campaign: 2h}\n",
            5,
            "3 sittings 1 h apart take more than 2 h, but timeouts.campaign is 2 h",
            "use fewer sittings, a shorter apart or a longer timeouts.campaign",
        ),
        # the whole
        ("", 1, "the file is empty", "sark-node init"),
        ("- a\n- b\n", 1, "a campaign must be a mapping", "sark-node init"),
        ("just words\n", 1, "a campaign must be a mapping", "sark-node init"),
    ],
)
def test_a_bad_campaign_is_one_clear_line(text: str, line: int, what: str, hint: str) -> None:
    error = bad(text)
    assert (error.file, error.line) == ("c.yaml", line)
    assert str(error).startswith(f"c.yaml:{line}: ")
    assert what in str(error)
    assert hint in error.hint
    assert "\n" not in str(error) + error.hint


def test_of_several_errors_the_first_by_line_is_shown_and_the_others_are_counted() -> None:
    error = bad("campaign: t\nmodels: [a]\nunits: [CPU (ONNX)]\nretry: 3\nmeasure:\n  runs: x\n  loads: 0\n")
    assert error.line == 4
    assert "and 2 more errors in this file" in error.hint


def test_thousands_of_errors_are_one_line_too() -> None:
    error = bad(HEAD + "".join(f"key{n}: {n}\n" for n in range(5000)))
    assert error.line == 4
    assert "unknown key 'key0'" in str(error)
    assert "and 4,999 more errors in this file" in error.hint


def test_a_matrix_above_the_cap_is_refused() -> None:
    models = ", ".join(f"m{n}" for n in range(MAX_CELLS // 64 + 1))
    threads = ", ".join(str(n) for n in range(1, 65))
    text = f"campaign: t\nmodels: [{models}]\nunits: [CPU (ONNX)]\nmeasure: {{threads: [{threads}]}}\n"
    assert f"{MAX_CELLS:,} are allowed" in str(bad(text))


def test_names_with_terminal_commands_are_not_repeated_in_errors() -> None:
    assert "\x1b" not in str(bad('campaign: "a\\eb"\nmodels: [a]\nunits: [x]\n'))


@given(st.binary(max_size=300))
def test_any_bytes_make_a_campaign_or_a_campaign_error(data: bytes) -> None:
    result = outcome(data)
    assert isinstance(result, Campaign) or result.file == "c.yaml"


_VALUES = st.sampled_from(
    [
        "1",
        "-1",
        "x",
        "[]",
        "[1]",
        "{}",
        "{a: 1}",
        "true",
        "~",
        "1.5",
        "10m",
        "''",
        "[{}]",
        "[[]]",
        "[~]",
        "[{path: ~}]",
    ]
)
_KEYS = st.sampled_from(
    [
        "campaign",
        "models",
        "units",
        "devices",
        "measure",
        "replicas",
        "priority",
        "timeouts",
        "retry",
        "jobs",
        "model_url",
        "other",
    ]
)


@given(st.dictionaries(_KEYS, _VALUES, max_size=6), st.booleans())
def test_any_value_under_any_key_makes_a_campaign_or_a_campaign_error(
    entries: dict[str, str], begun: bool
) -> None:
    base = {"campaign": "t", "models": "[a]", "units": "[CPU (ONNX)]"} if begun else {}
    text = "".join(f"{key}: {value}\n" for key, value in (base | entries).items())
    result = outcome(text.encode())
    assert (
        result.models if isinstance(result, Campaign) else 1 <= (result.line or 0) <= len(base | entries) + 1
    )


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("90s", 90), ("10m", 600), ("2h", 7200), ("1.5 d", 129600)]
)
def test_durations_are_read_with_their_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@given(st.floats(0.001, 86400))
def test_a_duration_survives_being_shown(seconds: float) -> None:
    assert parse_duration(duration_text(seconds)) == pytest.approx(seconds, abs=1e-9)


def test_the_shipped_schema_is_the_one_the_models_give() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(), "run: python -m scheduler.campaign.text"


def test_the_schema_tells_of_both_forms_and_of_no_hidden_key() -> None:
    shared = campaign_schema()["$defs"]
    assert {"campaign", "models", "units", "devices", "measure"} <= set(shared["Campaign"]["properties"])
    assert set(shared["PlainCampaign"]["properties"]) == {
        "campaign",
        "model_url",
        "model_sha256",
        "model_size",
        "jobs",
    }
    assert "jobs" not in set(shared["Campaign"]["properties"])
    assert {"path", "url", "sha256"} <= set(shared["ModelEntry"]["properties"])


def test_a_model_by_url_is_called_as_its_file_and_workers_get_the_urls_they_can_use() -> None:
    text = (
        "campaign: t\nunits: [CPU (ONNX)]\nmodels:\n"
        "  - https://x.org/m/a%20b.onnx?key=1\n"
        "  - {url: 'file:///m/c.onnx'}\n"
        "  - hf://org/repo/onnx/d.onnx@v1\n"
        "  - {name: e, path: e.onnx, url: 'https://x.org/e.onnx'}\n"
    )
    models = parse_campaign(text.encode(), "c.yaml").models
    assert [entry.label for entry in models] == ["a b.onnx", "c.onnx", "d.onnx", "e"]
    assert [entry.public_url for entry in models] == [
        "https://x.org/m/a%20b.onnx?key=1",
        None,
        "https://huggingface.co/org/repo/resolve/v1/onnx/d.onnx",
        "https://x.org/e.onnx",
    ]


def test_the_starter_is_a_campaign_and_so_are_all_of_its_commented_keys() -> None:
    text = starter_campaign()
    assert good(text).campaign == "my-first-campaign"
    optional = [
        line[2:]
        for line in text.splitlines()
        if line.startswith("# ") and ": " in line and "sark-node" not in line
    ]
    keys = {line.split(":")[0].strip().lstrip("- ") for line in optional}
    assert {
        "devices",
        "where",
        "priority",
        "timeouts",
        "retry",
        "warmup",
        "threads",
        "seed",
        "check",
    } <= keys | {"devices", "where"}
    for line in optional:
        if line.startswith(("priority", "timeouts", "retry")):
            good(text + line + "\n")


def test_a_campaign_file_on_disk_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(HEAD)
    assert load_campaign(path).campaign == "trial"
    with pytest.raises(CampaignError, match="no such file"):
        load_campaign(tmp_path / "none.yaml")


def test_a_precision_and_steps_reach_the_form_and_come_back_from_it() -> None:
    campaign = good(
        HEAD
        + """measure:
  precision: 0.5 %
  pre: [{step: normalise, of: x, mean: [1, 2.5], std: 2}, {step: transpose, order: [0, 3, 1, 2]}]
  post: [softmax, {step: top_k, of: y, k: 3}]
"""
    )
    measure = campaign.measure
    assert measure.precision == 0.005
    assert measure.pre[0].options == {"mean": (1, 2.5), "std": 2}
    assert measure.pre[1].options == {"order": (0, 3, 1, 2)}
    assert [(step.step, step.of, step.options) for step in measure.post] == [
        ("softmax", "", {}),
        ("top_k", "y", {"k": 3}),
    ]
    assert Campaign.model_validate_json(campaign.model_dump_json()).measure == measure


EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*/campaign.yaml"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.parent.name)
def test_an_example_names_the_schema_where_it_is_and_fits_a_usual_linux_device(example: Path) -> None:
    first = example.read_text("utf-8").splitlines()[0]
    if found := re.search(r"\$schema=(\S+)", first):
        assert (example.parent / found[1]).resolve() == SCHEMA_FILE.resolve()
    campaign = parse_campaign(example.read_bytes(), str(example))
    device = Advert(
        peer="1" * 52, seq=1, device="d-1", name="lab", ram=16 * 2**30, os="Debian GNU/Linux 12 (Linux 6.1.0)",
        arch="x86_64", cores=8, units=tuple(UnitOffer(unit=unit, runtime="r") for unit in campaign.units),
    )  # fmt: skip
    unmet = [
        str(each)
        for clause in campaign.devices.clauses()
        for each in match(Requirement(clauses=(clause,)), device).missing
    ]
    assert not unmet


def test_all_examples_are_looked_at() -> None:
    assert len(EXAMPLES) > 5
