"""What an owner reads about devices, and which devices a word selects."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from node.cli.remote import HERE, OwnerReply, jobs_table, reply_json, status_line, word_matches_device
from protocol.errors import Unreachable
from protocol.formats.phase import Phase
from protocol.messages.work import RunningJob, WorkerStatus
from protocol.values.advert import Advert
from protocol.words import WorkerState
from swarm.net.identity import Identity
from swarm.net.network import Path

PEER = Identity.from_seed("worker").peer_id
ME = Identity.from_seed("me").peer_id
FRIEND = Identity.from_seed("friend").peer_id


def status(**changes: object) -> WorkerStatus:
    return WorkerStatus.model_validate({"incarnation": 1, "state": "active", **changes}, strict=False)


@pytest.mark.parametrize(
    ("reported", "line"),
    [
        (status(), f"lab-1 …{PEER[-8:]}: active"),
        (status(state="busy", running=1), f"lab-1 …{PEER[-8:]}: busy; 1 running, 0 queued"),
        (
            status(state="draining", why="paused by its owner", running=2, queue=1),
            f"lab-1 …{PEER[-8:]}: paused by its owner; 2 running, 1 queued",
        ),
        (status(state="faulty", why="\x1b[31mred"), f"lab-1 …{PEER[-8:]}: faulty (\\x1b[31mred)"),
    ],
)
def test_a_reply_is_one_line(reported: WorkerStatus, line: str) -> None:
    assert status_line(OwnerReply("lab-1", PEER, reported)) == line


def test_an_error_is_shown_and_is_in_the_json_too() -> None:
    reply = OwnerReply("lab-1", PEER, None, Unreachable("no way to lab-1"))
    assert status_line(reply) == f"lab-1 …{PEER[-8:]}: no way to lab-1"
    assert reply_json(reply) == {"device": "lab-1", "peer": PEER, "error": "no way to lab-1"}
    assert reply_json(OwnerReply("lab-1", PEER, status()))["state"] == str(WorkerState.ACTIVE)


def test_the_path_and_how_others_reach_the_device_follow_the_state() -> None:
    behind = status(reach="cannot be dialled from outside; reached through gate 192.0.2.7:4101")
    far = OwnerReply("lab-1", PEER, behind, path=Path(False, ME, 41.0))
    assert status_line(far) == (
        f"lab-1 …{PEER[-8:]}: active; cannot be dialled from outside; reached through gate 192.0.2.7:4101;"
        f" via gate …{ME[-8:]}, 41 ms"
    )
    assert reply_json(far)["path"] == {"direct": False, "gate": ME, "rtt_ms": 41.0}
    assert reply_json(far)["reach"] == behind.reach
    own = OwnerReply(HERE, PEER, status(), path=Path(True, None, 0.5))
    assert status_line(own) == f"{HERE}: active"


def test_jobs_fit_in_80_columns_with_their_principal() -> None:
    jobs = (
        RunningJob(task="c-ab23cd45/3", model="mobilenet_v2.onnx", principal=ME, priority=50, state="running", phase=Phase.RUN, since_s=12),
        RunningJob(task="c-ab23cd45/12", model="m" * 40, principal=PEER, team="vision", priority=20, state="queued", since_s=200),
        RunningJob(task="c-ab23cd45/13", model="m.onnx", principal=FRIEND, priority=20, state="queued", since_s=9),
    )  # fmt: skip
    out = io.StringIO()
    Console(file=out, width=80).print(jobs_table(jobs, {ME: "you", FRIEND: "alice"}))
    text = out.getvalue()
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "you" in text
    assert " alice " in text
    assert FRIEND[-8:] not in text
    assert f"…{PEER[-8:]}" in text
    assert "running, run" in text
    assert "3 min" in text


def test_a_word_names_a_device_by_name_id_or_end_of_peer_id() -> None:
    advert = Advert(peer=PEER, seq=1, device="d-1", name="lab-1")
    for word in ("lab-1", "d-1", PEER, PEER[-8:], "…" + PEER[-8:]):
        assert word_matches_device(word, advert), word
    for word in ("lab", PEER[-5:], "", "lab-2"):
        assert not word_matches_device(word, advert), word
