"""What a child may send. Nothing else gets through."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from dataclasses import asdict, fields
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from drivers.contract import base, frames
from drivers.contract.base import (
    BetweenLaunches,
    Cancelled,
    CheckReport,
    Crashed,
    Event,
    Limits,
    LoadReport,
    MeasureReport,
    MeterReport,
    ModelDescription,
    OutOfMemory,
    ProgressReport,
    SampleBlock,
    SampleModel,
    Sent,
    Telemetry,
    Unfit,
    UnitInfo,
    WorkOrder,
)
from drivers.launch.events import MAX_COMMAS, SENT, unpack
from protocol.formats.phase import Phase
from protocol.values.record import MAX_SAMPLES, LoadSample, RunFacts, Timing

EVENTS: list[Event | UnitInfo] = [
    ProgressReport(Phase.RUN, 3, 10, 1.5),
    ProgressReport(Phase.LOAD),
    LoadReport(5, None, 7),
    MeasureReport((1, 2), (3,), 0.5, 0.6, None, 20, None),
    ModelDescription(
        "CPU (ONNX)",
        "onnx",
        "onnxruntime 1",
        ("CPU",),
        2,
        {"x": (1, 8), "s": ()},
        {"x": "float"},
        0,
        ("note",),
    ),
    CheckReport(None, "", None, None, "why"),
    CheckReport(True, "ab" * 32, 1e-6, 1e-3),
    UnitInfo("CPU (ONNX)", "onnx", "onnxruntime 1"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_arrives_as_it_was_sent(event: Event | UnitInfo) -> None:
    (payload,) = frames.Reassembler(10_000).feed(frames.pack_event(event))
    assert unpack(payload) == event


def test_every_event_but_what_the_parent_reads_itself_may_be_sent_and_is_bounded() -> None:
    assert set(SENT) == {*get_args(Event), UnitInfo, SampleModel} - {Telemetry, BetweenLaunches, MeterReport}
    for kind in SENT:
        assert issubclass(kind, Sent)
        hints = get_type_hints(kind, include_extras=True)
        assert not {int, float, str} & set(hints.values()), "each number and text has its bounds"


def test_frames_come_out_whole_however_the_bytes_arrive() -> None:
    stream = b"".join(frames.pack_event(event) for event in EVENTS)
    pieces = frames.Reassembler(10_000)
    payloads = [payload for index in range(len(stream)) for payload in pieces.feed(stream[index : index + 1])]
    assert [unpack(payload) for payload in payloads] == EVENTS


def test_a_failure_is_sent_as_name_and_sentence() -> None:
    for error, kind in ((Unfit("no"), Unfit), (OutOfMemory("no"), OutOfMemory), (Cancelled("no"), Crashed)):
        (payload,) = frames.Reassembler(1000).feed(frames.pack_failure(error))
        received = unpack(payload)
        assert (type(received), str(received)) == (kind, "no")


def test_an_announced_length_beyond_the_cap_is_refused_before_it_arrives() -> None:
    with pytest.raises(frames.Garbled, match="announced"):
        frames.Reassembler(1 << 40).feed(b"\xff\xff\xff\xff")


def test_a_child_that_talks_too_much_is_stopped() -> None:
    pieces = frames.Reassembler(100)
    pieces.feed(frames.frame(b"x" * 50))
    with pytest.raises(frames.Garbled, match="output limit"):
        pieces.feed(frames.frame(b"x" * 50))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"Event {}",
        b'["LoadReport"] {}',
        b'LoadReport {"load_ns": 1, "baseline_bytes": null}',
        b'LoadReport {"load_ns": true, "baseline_bytes": null, "peak_bytes": null}',
        b'LoadReport {"load_ns": -1, "baseline_bytes": null, "peak_bytes": null}',
        b'LoadReport {"load_ns": 99999999999999999999, "baseline_bytes": null, "peak_bytes": null}',
        b'LoadReport {"load_ns": 1, "baseline_bytes": null, "peak_bytes": null, "more": 1}',
        b'ProgressReport {"phase": "dance", "done": 0, "total": null, "median_ms": null}',
        b'ProgressReport {"phase": "run", "done": 0, "total": null, "median_ms": NaN}',
        b'ProgressReport {"phase": "run", "done": 0, "total": null, "median_ms": Infinity}',
        b'CheckReport {"agrees": 1, "output_sha256": "", "max_error": null, "tolerance": null, "note": ""}',
        b'UnitInfo {"unit": 7, "driver": "", "runtime": "", "detail": ""}',
        b"[" * 100_000,
    ],
)
def test_what_is_not_an_event_is_garbled(payload: bytes) -> None:
    with pytest.raises(frames.Garbled):
        unpack(payload)


@pytest.mark.parametrize("part", [b"{}", b"[]", b'"ab"', b"300"])
def test_a_frame_that_would_be_many_times_as_large_in_memory_is_not_read(part: bytes) -> None:
    with pytest.raises(frames.Garbled, match="more parts than any event"):
        unpack(b'LoadReport {"more": [' + b",".join([part] * 2_600_000) + b"]}")


def test_the_largest_events_there_are_have_fewer_parts_than_that() -> None:
    block = SampleBlock(1, 1, 1, 1, 1)
    blocks = MeasureReport((1,), (), 0.0, 0.0, None, 0, None, blocks=(block,) * base.MAX_ENTRIES)
    described = ModelDescription(
        "u", "d", "r", (), 1, {f"x{at}": (1,) * base.MAX_RANK for at in range(base.MAX_ENTRIES)}, {}, 0
    )
    for event in (blocks, described):
        (payload,) = frames.Reassembler(1 << 30).feed(frames.pack_event(event))
        assert unpack(payload) == event
    assert 2 * base.MAX_SAMPLES < MAX_COMMAS


@pytest.mark.parametrize(
    ("event", "field", "value"),
    [
        (ProgressReport(Phase.RUN), "done", 2**53 + 1),
        (ProgressReport(Phase.RUN), "median_ms", 10**400),
        (LoadReport(1, None, None), "load_ns", 2**60),
        (MeasureReport((), (), 0.0, 0.0, None, 0, None), "cpu_s", 1e9),
        (MeasureReport((), (), 0.0, 0.0, None, 0, None), "wall_s", 31_536_001),
        (ModelDescription("u", "d", "r", (), 1, {}, {}, 0), "threads", 2**20),
        (ModelDescription("u", "d", "r", (), 1, {}, {}, 0), "shapes", {"x": [1] * 65}),
        (ModelDescription("u", "d", "r", (), 1, {}, {}, 0), "notes", ["\ud800"]),
        (CheckReport(True, "", None, None), "output_sha256", "abc"),
    ],
)
def test_a_value_that_no_record_can_hold_is_garbled(event: Event, field: str, value: object) -> None:
    def sent(values: dict[str, object]) -> bytes:
        return f"{type(event).__name__} {json.dumps(values)}".encode()

    assert type(unpack(sent(asdict(event)))) is type(event)
    with pytest.raises(frames.Garbled):
        unpack(sent({**asdict(event), field: value}))


def test_the_caps_of_the_pipe_are_those_of_the_record() -> None:
    assert base.MAX_SAMPLES == MAX_SAMPLES
    LoadSample(ns=base.MAX_INT)
    Timing(samples=b"", warmup=b"", cpu_s=base.MAX_SECONDS, wall_s=0.0)
    RunFacts(unit="u", driver="d", runtime="r", threads=base.MAX_THREADS, notes=("x" * base.MAX_TEXT,))
    for beyond in (
        lambda: LoadSample(ns=base.MAX_INT + 1),
        lambda: Timing(samples=b"", warmup=b"", cpu_s=base.MAX_SECONDS + 1.0, wall_s=0.0),
        lambda: RunFacts(unit="u", driver="d", runtime="r", threads=base.MAX_THREADS + 1),
    ):
        with pytest.raises(ValidationError):
            beyond()


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = LEAVES | st.lists(LEAVES, max_size=3) | st.dictionaries(st.text(max_size=5), LEAVES, max_size=3)


@given(kind=st.sampled_from(SENT), entries=st.data())
def test_no_made_up_message_does_anything_but_become_an_event_or_be_garbled(
    kind: type, entries: st.DataObject
) -> None:
    values = {field.name: entries.draw(JSON) for field in fields(kind)}
    try:
        event = unpack(f"{kind.__name__} {json.dumps(values)}".encode())
    except frames.Garbled:
        return
    assert type(event) is kind


def test_an_order_arrives_as_it_was_given() -> None:
    order = WorkOrder("/m.onnx", "CPU (ONNX)", dims={"batch": 4}, own_dims=("batch",), warmup=None, seed=9)
    limits = Limits(load_s=1.5)
    assert frames.unpack_order(frames.pack_order(order, limits, "onnx", False, "run")) == (
        order,
        limits,
        "onnx",
        False,
        "run",
    )


@pytest.mark.skipif(sys.platform == "win32", reason="no descriptors are passed there")
def test_requests_that_follow_each_other_are_read_one_by_one_with_their_own_descriptors() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull) as file:  # noqa: PTH123
        theirs.settimeout(10)  # instead of waiting forever
        order = bytes(150_000)

        def send() -> None:
            frames.send_request(ours, order, [file.fileno(), file.fileno()])
            frames.send_request(ours, b"", [file.fileno()])

        sender = threading.Thread(target=send)
        sender.start()
        first, second = frames.receive_request(theirs), frames.receive_request(theirs)
        sender.join()
        ours.close()
        assert first is not None
        assert second is not None
        assert (first[0], len(first[1])) == (order, 2)
        assert (second[0], len(second[1])) == (b"", 1)
        assert frames.receive_request(theirs) is None
        for fd in (*first[1], *second[1]):
            os.close(fd)
