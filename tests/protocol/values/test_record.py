"""Adverts, tasks and records as signed bytes."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.values.advert import MAX_ADVERT, Advert, UnitOffer, advert_body, advert_message, read_advert
from protocol.values.lease import Fence
from protocol.values.record import (
    DeviceFacts,
    LoadSample,
    Record,
    RunFacts,
    Timing,
    pack_samples,
    read_record,
    record_body,
    record_message,
    unpack_samples,
)
from protocol.values.requirement import Requirement, parse_clause
from protocol.values.task import Measure, Model, Task, Timeouts, read_task, task_body, task_message
from protocol.words import RunOutcome

PEER = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
ADVERT = Advert(
    peer=PEER,
    seq=7,
    device="d-1",
    name="laptop",
    ram=2**34,
    units=(UnitOffer(unit="CPU (ONNX)", runtime="ort"),),
)
TASK = Task(
    campaign="c-1",
    task="c-1/1",
    scheduler=PEER,
    model=Model(name="a model.onnx", sha256="a" * 64, size=10),
    unit="CPU (ONNX)",
    requirement=Requirement(clauses=(parse_clause("ram >= 1 GiB"),)),
    measure=Measure(runs=10, dims={"batch": 1}),
    timeouts=Timeouts(),
)
RECORD = Record(
    campaign="c-1",
    task="c-1/1",
    attempt=1,
    fence=Fence(incarnation=1, number=2),
    worker=PEER,
    task_sha256="a" * 64,
    model_sha256="b" * 64,
    outcome=RunOutcome.COMPLETE,
    device=DeviceFacts(device="d-1", name="laptop"),
    loads=(LoadSample(ns=5_000_000),) * 5,
    timings=(Timing(samples=pack_samples((1, 2, 3)), warmup=pack_samples(()), cpu_s=0.1, wall_s=0.2),),
)


def test_signed_things_come_back_as_they_went() -> None:
    assert read_advert(advert_body(ADVERT)) == ADVERT
    assert read_task(task_body(TASK)) == TASK
    assert read_record(record_body(RECORD)) == RECORD


def test_one_signature_can_never_stand_for_another_sort_of_thing() -> None:
    body = b"the same bytes"
    assert len({advert_message(body), task_message(body), record_message(body), body}) == 4


@given(st.binary(max_size=200))
def test_junk_in_place_of_a_signed_body_is_refused(junk: bytes) -> None:
    for read in (read_advert, read_task, read_record):
        with pytest.raises(RemoteProtocolError):
            read(junk)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "\x1b[31mred"},
        {"name": "=cmd()"},
        {"soc": "line\nbreak"},
        {"ram": -1},
        {"peer": "nobody"},
        {"v": 2},
    ],
    ids=["escape", "formula", "newline", "negative", "peer", "version"],
)
def test_an_advert_that_could_harm_a_reader_is_refused(change: dict[str, object]) -> None:
    from protocol.wire.codec import pack

    body = pack({**ADVERT.to_wire(), **change})
    with pytest.raises(RemoteProtocolError, match="bad advert"):
        read_advert(body)


def test_an_advert_too_large_to_keep_is_not_made() -> None:
    labels = {f"label{number}": "v" * 64 for number in range(16)}
    with pytest.raises(LocalProtocolError, match=f"{MAX_ADVERT} are allowed"):
        advert_body(ADVERT.model_copy(update={"labels": labels}))


@given(st.lists(st.integers(0, 2**53), max_size=300))
def test_samples_come_back_in_order(samples: list[int]) -> None:
    assert unpack_samples(pack_samples(samples)) == tuple(samples)


@given(st.binary(max_size=100))
def test_junk_samples_are_refused_or_read_as_times(junk: bytes) -> None:
    for data in (junk, zlib.compress(junk)):
        try:
            samples = unpack_samples(data)
        except RemoteProtocolError:
            continue
        assert all(sample >= 0 for sample in samples)


def test_a_bomb_of_samples_is_refused() -> None:
    bomb = zlib.compress(b"\0" * 50_000_000, 9)
    assert len(bomb) < 60_000
    with pytest.raises(RemoteProtocolError, match="too long"):
        unpack_samples(bomb)


def test_samples_of_a_steady_model_pack_small() -> None:
    steady = [5_300_000 + (number * 7919) % 2000 for number in range(10_000)]
    assert len(pack_samples(steady)) < 10_000 * 8 / 3


@pytest.mark.parametrize(
    ("agrees", "compute_type", "evidence"),
    [
        (True, None, True),
        (False, None, False),
        (None, None, None),
        (True, "bf16", True),
        (False, "bf16", None),
        (False, "f16", None),
        (False, "f32", False),
    ],
)
def test_outputs_of_few_digits_that_differ_say_nothing_of_the_device(
    agrees: bool | None, compute_type: str | None, evidence: bool | None
) -> None:
    ran = RunFacts(unit="u", driver="d", runtime="r", agrees=agrees, compute_type=compute_type)
    assert ran.evidence is evidence
