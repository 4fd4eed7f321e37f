"""Frames on the wire: in any pieces, with any junk, and golden bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.formats.phase import Phase
from protocol.messages.blobs import (
    BLOB,
    AskHolders,
    AskPieceHashes,
    AskPieces,
    BlobAbsent,
    FetchPiece,
    HavePieces,
    HolderInfo,
    Holders,
    PieceFollows,
    TransferGrant,
)
from protocol.messages.forget import Forget, Forgotten
from protocol.messages.gate import GATE, ConnectedPeer, GateSnapshot, GateStatus, LiveCircuit, RelayCaps
from protocol.messages.health import HEALTH, Ping, Pong
from protocol.messages.index import ContactInfo, RefusedMessage
from protocol.messages.pool import (
    POOL,
    AskManifest,
    EnrolRequest,
    ManifestMessage,
    ManifestStored,
    NoManifest,
)
from protocol.messages.reach import REACH, DialBack, DialBackReply
from protocol.messages.work import (
    WORK,
    Accepted,
    Action,
    AdoptReply,
    AdoptRequest,
    Cancel,
    Commit,
    Conflict,
    Control,
    CredentialsReply,
    Denied,
    Granted,
    HeldLease,
    LaunchEnded,
    LeaseLost,
    ListLeases,
    LiveLease,
    Preempt,
    Probe,
    Progress,
    Queued,
    Quote,
    Ready,
    Release,
    Renew,
    Renewed,
    Result,
    Reveal,
    RevealRequest,
    RunningJob,
    Shape,
    ShapeQuote,
    ShowCredentials,
    Skip,
    Stale,
    Start,
    StatusRequest,
    Stopped,
    WorkerStatus,
)
from protocol.values.lease import Fence
from protocol.values.requirement import Requirement, parse_clause
from protocol.wire.base import MAX_FRAME, Message
from protocol.wire.codec import Decoder, Frame, FrameKind, Vocabulary, pack, unpack
from protocol.words import (
    Reason,
    Right,
    Role,
    WorkerState,
)

GRANT = TransferGrant(
    giver="1" * 52, taker="2" * 52, sha256="a" * 64, until=1_800_000_000, signature=b"s" * 64
)
FENCE = Fence(incarnation=3, number=7)
HELD = HeldLease(lease="l-7", fence=FENCE)
REQUIREMENT = Requirement(clauses=(parse_clause("ram >= 8 GiB"), parse_clause("os in Linux, Darwin")))
QUOTE = Quote(
    incarnation=3,
    ledger=9,
    state=WorkerState.ACTIVE,
    free=1,
    queue=0,
    start_s=0.0,
    shapes=(
        ShapeQuote(fits=True, warm=True),
        ShapeQuote(fits=False, unmet=("ram: has 4 GiB, needs >= 8 GiB",)),
    ),
)
EVERY: tuple[tuple[Vocabulary, Message], ...] = (
    (WORK, ShowCredentials(issuer="1" * 52, token=b"biscuit")),
    (WORK, CredentialsReply(principal="1" * 52, rights=(Right.SUBMIT,), priority=70, slots=4, left_s=60.0)),
    (WORK, ListLeases(campaign="c-1")),
    (WORK, Control(action=Action.DRAIN, finish=True)),
    (WORK, StatusRequest()),
    (
        WORK,
        WorkerStatus(
            incarnation=3,
            state=WorkerState.DRAINING,
            why="paused by its owner",
            jobs=(
                RunningJob(
                    task="c-1/1",
                    model="m.onnx",
                    principal="1" * 52,
                    priority=50,
                    state="running",
                    since_s=2.0,
                ),
            ),
            running=1,
        ),
    ),
    (
        REACH,
        DialBack(
            ports=(4001, 4002), gates=(ContactInfo(peer="1" * 52, addresses=("/ip4/192.0.2.1/tcp/4101",)),)
        ),
    ),
    (GATE, GateStatus()),
    (
        GATE,
        GateSnapshot(
            version="0.1.0",
            incarnation=3,
            uptime_s=60.0,
            admit="open",
            addresses=("/ip4/192.0.2.7/tcp/4101",),
            connected=2,
            peers=(ConnectedPeer(peer="1" * 52, address="/ip4/192.0.2.9/tcp/51034", reserved=True),),
            caps=RelayCaps(
                reservations=1024,
                reservations_per_network=256,
                circuits=1024,
                circuits_from_peer=256,
                circuits_to_peer=32,
                circuits_from_network=512,
                circuit_bytes=1 << 30,
                circuit_s=7200.0,
                bytes_per_s=1 << 24,
            ),
            reservations=1,
            reservations_made=4,
            circuits=1,
            busiest=(LiveCircuit(source="1" * 52, target="2" * 52, seconds=2.0, bytes=65_507),),
            circuits_begun=7,
            circuits_ended={"closed": 6},
            relayed_bytes=1_048_576,
            refused={"relay full": 3},
            adverts=2,
            shards=40,
            advert_bytes=1_800,
            memory_bytes=93_000_000,
            cpu_s=1.5,
            lag_s=0.25,
        ),
    ),
    (REACH, DialBackReply(observed="/ip4/192.0.2.7/tcp/51034", reached=(4001,), wall_ms=1_790_000_000_000)),
    (POOL, AskManifest(pool="1" * 52, have=3)),
    (POOL, ManifestMessage(body=b"manifest", signature=b"m" * 64)),
    (POOL, NoManifest()),
    (POOL, ManifestStored(number=4)),
    (POOL, EnrolRequest(pool="1" * 52, role=Role.SUBMIT, name="anna", ticket=b"t" * 16)),
    (WORK, ManifestMessage(body=b"manifest", signature=b"m" * 64)),
    (POOL, RefusedMessage(reason=Reason.NOT_ALLOWED, detail="the ticket has expired")),
    (
        WORK,
        Probe(
            campaign="c-1",
            shapes=(Shape(unit="CPU (ONNX)", requirement=REQUIREMENT, model="a" * 64, size=3_160_000),),
        ),
    ),
    (WORK, QUOTE),
    (WORK, Denied(reason=Reason.NOT_ALLOWED, detail="not on this node's list")),
    (
        WORK,
        Commit(
            key="c-1/1/1",
            attempt=1,
            epoch=0,
            task=b"task",
            signature=b"s" * 64,
            ledger=9,
            queue=True,
            priority=60,
        ),
    ),
    (WORK, Granted(lease="l-7", fence=FENCE, ttl_s=15.0, renew_s=5.0)),
    (WORK, Queued(lease="l-8", fence=FENCE, position=2, start_s=1.5, ttl_s=15.0, renew_s=5.0)),
    (WORK, Conflict(reason=Reason.STALE_QUOTE, quote=QUOTE)),
    (WORK, Ready(lease="l-8", fence=FENCE)),
    (WORK, Start()),
    (WORK, Skip()),
    (WORK, Renew(held=(HELD,))),
    (
        WORK,
        Renewed(
            incarnation=3,
            state=WorkerState.BUSY,
            renewed=("l-7",),
            lost=(LeaseLost(lease="l-6", reason=Reason.EXPIRED),),
        ),
    ),
    (
        WORK,
        Progress(lease="l-7", fence=FENCE, seq=4, phase=Phase.RUN, done=120, total=200, median_ms=12.5),
    ),
    (
        WORK,
        Result(
            campaign="c-1",
            task="c-1/1",
            attempt=1,
            lease="l-7",
            fence=FENCE,
            sha256="b" * 64,
            size=6,
            signature=b"r" * 64,
            body=b"record",
        ),
    ),
    (WORK, Accepted()),
    (WORK, Stale(reason=Reason.FENCED)),
    (WORK, Cancel(held=(HELD,))),
    (WORK, Release(held=(HeldLease(lease="l-7", fence=FENCE, epoch=4),))),
    (WORK, Stopped(leases=("l-7",))),
    (WORK, Preempt(lease="l-7", fence=FENCE, grace_s=10.0, priority=80)),
    (WORK, AdoptRequest(campaign="c-1", epoch=2)),
    (
        WORK,
        AdoptReply(
            incarnation=3,
            leases=(LiveLease(task="c-1/1", attempt=1, lease="l-7", fence=FENCE, phase=Phase.LOAD),),
        ),
    ),
    (BLOB, FetchPiece(sha256="a" * 64, offset=65_507, length=1_048_576)),
    (BLOB, PieceFollows(size=3_160_000, length=1_048_576)),
    (BLOB, BlobAbsent(reason=Reason.NOT_ALLOWED, detail="no lease of yours needs it")),
    (BLOB, AskPieces(sha256="a" * 64, grant=GRANT)),
    (BLOB, HavePieces(size=3_160_000, pieces=b"\x01", fresh=b"\x00")),
    (BLOB, AskPieceHashes(sha256="a" * 64)),
    (BLOB, AskHolders(sha256="a" * 64)),
    (BLOB, Holders(grant=GRANT, others=(HolderInfo(peer="1" * 52, addresses=("/ip4/192.0.2.7/tcp/4102",)),))),
    (WORK, RevealRequest(lease="w-1.1", fence=Fence(incarnation=3, number=7))),
    (WORK, Reveal(opening=bytes(range(32)), reveal=bytes(range(32, 64)))),
    (WORK, LaunchEnded(lease="w-1.1", fence=Fence(incarnation=3, number=7), launch=2, digest="c" * 64)),
    (WORK, Forget(campaign="c-1", epoch=4)),
    (WORK, Forgotten(records=2, models=1, size=3_160_000)),
    (HEALTH, Ping()),
    (HEALTH, Pong(role="worker", incarnation=3, state=WorkerState.FAULTY, why="3 crashes in a row")),
)
GOLDEN = dict(
    line.split() for line in Path(__file__).with_name("golden.txt").read_text("ascii").splitlines() if line
)
IDS = [type(message).__name__ for _, message in EVERY]


def whole_frames(decoder: Decoder) -> list[Frame]:
    """All frames that are complete by now."""
    return list(iter(decoder.next, None))


def decoded(vocabulary: Vocabulary, data: bytes) -> list[Frame]:
    decoder = Decoder(vocabulary)
    decoder.feed(data)
    return whole_frames(decoder)


def test_every_message_of_these_families_has_an_example() -> None:
    """Ensures that the golden bytes below miss no message."""
    shown = {type(message) for _, message in EVERY}
    spoken = {message for family in (WORK, BLOB, HEALTH, POOL, REACH, GATE) for message in family.messages}
    assert shown == spoken


@pytest.mark.parametrize(("vocabulary", "message"), EVERY, ids=IDS)
def test_a_message_comes_back_as_it_went(vocabulary: Vocabulary, message: Message) -> None:
    frame = Frame(FrameKind.CALL, 5, message)
    assert decoded(vocabulary, vocabulary.encode(frame)) == [frame]


@pytest.mark.parametrize(("vocabulary", "message"), EVERY, ids=IDS)
def test_the_bytes_of_a_message_stay_what_they_were(vocabulary: Vocabulary, message: Message) -> None:
    """Golden bytes: a change here breaks compatibility with every deployed node."""
    assert vocabulary.encode(Frame(FrameKind.CALL, 5, message)).hex() == GOLDEN[type(message).__name__]


@given(data=st.data())
def test_a_stream_of_messages_may_be_cut_anywhere(data: st.DataObject) -> None:
    frames = [
        Frame(FrameKind.CALL, number + 1, message)
        for number, (vocabulary, message) in enumerate(EVERY)
        if vocabulary is WORK
    ]
    stream = b"".join(WORK.encode(frame) for frame in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    decoder, got = Decoder(WORK), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        decoder.feed(stream[start:end])
        got += whole_frames(decoder)
    assert got == frames
    assert not decoder.partial


@given(st.binary(max_size=300))
def test_junk_gives_a_remote_protocol_error_and_nothing_else(junk: bytes) -> None:
    decoder = Decoder(WORK)
    try:
        for part in (junk, len(junk).to_bytes(4, "big") + junk):
            decoder.feed(part)
            whole_frames(decoder)
    except RemoteProtocolError:
        pass


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(kind=st.sampled_from(["c", "a", "n", "x"]), number=st.integers(-1, 2**33), fields=plain)
def test_well_packed_nonsense_is_refused_the_same_way(kind: str, number: int, fields: Any) -> None:
    for name in ("probe", "commit", "renew", "granted"):
        body: Any = msgpack.packb([kind, number, name, fields])
        try:
            decoded(WORK, len(body).to_bytes(4, "big") + body)
        except RemoteProtocolError:
            continue
        assert isinstance(fields, dict)


def test_a_frame_above_the_cap_is_refused_before_its_body_arrives() -> None:
    with pytest.raises(RemoteProtocolError, match="above the cap"):
        decoded(WORK, (MAX_FRAME + 1).to_bytes(4, "big"))


class Huge(Message, type="huge"):
    body: bytes


def test_we_never_send_a_frame_above_the_cap() -> None:
    vocabulary = Vocabulary(Huge)
    assert vocabulary.encode(Frame(FrameKind.CALL, 1, Huge(body=b"x" * (MAX_FRAME - 30))))
    with pytest.raises(LocalProtocolError, match="above the cap"):
        vocabulary.encode(Frame(FrameKind.CALL, 1, Huge(body=b"x" * MAX_FRAME)))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"\x91" * 9 + b"\xc0", "nested deeper"),
        (pack([list(range(1000)), list(range(100))]), "more than 1024 elements"),
        (b"\x81\xa1a\x01\xa1b", "not canonical"),
        (b"\x82\xa1a\x01\xa1a\x02", "not canonical"),
        (b"\xcd\x00\x01", "not canonical"),
        (b"\xd6\xff\x00\x00\x00\x00", "not canonical"),
        (b"\xdd\xff\xff\xff\xff", "not canonical"),
        (b"\x90" * 5, "not canonical"),
        (b"", "not canonical"),
    ],
    ids=["deep", "wide", "cut", "twice the same key", "long form", "ext", "bomb", "trailing", "empty"],
)
def test_only_canonical_bounded_msgpack_is_read(value: bytes, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        unpack(value)


def test_the_fullest_refusal_and_quote_fit_in_a_frame() -> None:
    """A peer chooses what we refuse, and must not be able to make our answer larger than a frame."""
    denied = Denied(reason=Reason.BUSY, unmet=("x" * 200,) * 32, detail="\u20ac" * 2000)
    shape = ShapeQuote(fits=False, unmet=("x" * 200,) * 8)
    assert len(WORK.encode(Frame(FrameKind.ANSWER, 1, denied))) <= MAX_FRAME
    assert (
        len(WORK.encode(Frame(FrameKind.ANSWER, 1, QUOTE.model_copy(update={"shapes": (shape,) * 16}))))
        <= MAX_FRAME
    )


def test_fields_of_a_newer_peer_are_ignored() -> None:
    body = pack(["n", 0, "start", {"from_the_future": 1}])
    assert WORK.decode(body) == Frame(FrameKind.NOTE, 0, Start())


def test_a_word_of_another_family_is_not_spoken() -> None:
    with pytest.raises(LocalProtocolError, match="not a message of this protocol"):
        HEALTH.encode(Frame(FrameKind.CALL, 1, Start()))
    with pytest.raises(RemoteProtocolError, match="no message of type"):
        HEALTH.decode(pack(["c", 1, "start", {}]))


@pytest.mark.parametrize("fields", [{"lease": 5}, {"lease": "a b"}, {"lease": "x" * 200}, {}])
def test_a_field_of_the_wrong_form_is_named(fields: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError, match="bad ready: lease"):
        WORK.decode(pack(["c", 1, "ready", {**fields, "fence": {"incarnation": 1, "number": 1}}]))


KINDS = [
    (vocabulary, message, kind) for vocabulary, message in EVERY for kind in (FrameKind.CALL, FrameKind.NOTE)
]


@pytest.mark.parametrize(("vocabulary", "message", "kind"), KINDS)
def test_a_message_comes_as_the_kind_its_family_declares(
    vocabulary: Vocabulary, message: Message, kind: FrameKind
) -> None:
    """A costly message is a call: its sender must read the answer, and it takes one of the places of calls in progress."""
    frame = Frame(kind, 1 if kind is FrameKind.CALL else 0, message)
    if type(message) in (vocabulary.calls if kind is FrameKind.CALL else vocabulary.notes):
        vocabulary.check_kind(frame)
    else:
        with pytest.raises(RemoteProtocolError, match=f"a {message.type} is no {kind.name.lower()}"):
            vocabulary.check_kind(frame)


def test_only_the_steps_of_a_run_are_notes() -> None:
    notes = {
        message for vocabulary in (WORK, BLOB, HEALTH, POOL, REACH, GATE) for message in vocabulary.notes
    }
    assert notes == {Progress, LaunchEnded, Preempt}


def test_what_was_not_asked_for_yet_is_not_decoded() -> None:
    """A read of 64 KiB holds thousands of tiny frames, which took 30 times as much memory as objects."""
    decoder = Decoder(HEALTH)
    ping = HEALTH.encode(Frame(FrameKind.CALL, 1, Ping()))
    junk = b"\x00\x00\x00\x01\xc0"
    decoder.feed(ping + ping + junk)
    assert decoder.next() == decoder.next() == Frame(FrameKind.CALL, 1, Ping())
    assert decoder.held == len(junk)
    with pytest.raises(RemoteProtocolError):
        decoder.next()


def test_a_note_has_no_id_and_a_call_has_one() -> None:
    for kind, number in (("n", 1), ("c", 0), ("a", 0)):
        with pytest.raises(RemoteProtocolError, match="bad kind or id"):
            WORK.decode(pack([kind, number, "start", {}]))


def test_we_never_send_what_the_peer_would_have_to_refuse() -> None:
    """A frame may be small enough and still hold more elements than a receiver accepts."""
    clauses = tuple(parse_clause(f"cores >= {number}") for number in range(24))
    shape = Shape(unit="u", requirement=Requirement(clauses=clauses), model="a" * 64, size=1)
    with pytest.raises(LocalProtocolError, match="more than 1024 elements"):
        WORK.encode(Frame(FrameKind.CALL, 1, Probe(campaign="c", shapes=(shape,) * 16)))
