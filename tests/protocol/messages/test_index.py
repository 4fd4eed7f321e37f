"""The largest messages of the index fit in a frame and within the decoder's caps."""

from __future__ import annotations

import pytest

from protocol.errors import RemoteProtocolError
from protocol.messages import index as index_messages
from protocol.values.advert import MAX_ADVERT, SignedAdvert
from protocol.values.requirement import Clause, Op, Requirement
from protocol.wire.base import MAX_FRAME, Message
from protocol.wire.codec import PREFIX, Frame, FrameKind, pack
from protocol.words import Reason

PEER = "1" * 52
SIGNED = SignedAdvert(body=b"x" * MAX_ADVERT, signature=b"s" * 64)
CONTACT = index_messages.ContactInfo(peer=PEER, addresses=("/ip4/192.0.2.100/tcp/40001",) * 8)
LISTED = (index_messages.ListedAdvert(advert=SIGNED, age_s=1.5),) * index_messages.PAGE_LIMIT
LARGEST: list[Message] = [
    index_messages.FindPeers(key=b"k" * 32, count=16, sender=CONTACT),
    index_messages.FoundPeers(contacts=(CONTACT,) * index_messages.MAX_CONTACTS),
    index_messages.StoreAdverts(
        advert=SIGNED,
        items=(index_messages.StoreItem(attribute="unit:" + "u" * 200, depth=24, have=b"h" * 64),)
        * index_messages.MAX_ITEMS,
    ),
    index_messages.StoreReply(
        items=(
            index_messages.StoredItem(verdict=index_messages.StoreVerdict.SPLIT, count=2**40, below=2**40),
        )
        * index_messages.MAX_ITEMS,
        reason="r" * 2000,
        closer=(CONTACT,) * index_messages.MAX_CONTACTS,
    ),
    index_messages.QueryShard(
        attribute="unit:" + "u" * 200,
        requirement=Requirement(
            clauses=(Clause(attribute="label.site", op=Op.IN, value=("v" * 50,) * 16),) * 32,
        ),
        have=b"h" * 64,
    ),
    index_messages.ShardPage(
        adverts=LISTED,
        matches=2000,
        count=2000,
        split=True,
        below=2**40,
        cursor=32,
        closer=(CONTACT,) * index_messages.MAX_CONTACTS,
    ),
    index_messages.MarkSplit(attribute="node", depth=3, prefix=5, below=900),
    index_messages.MarkReply(split=True),
    index_messages.RefusedMessage(reason=Reason.OVERLOADED, detail="too many calls", retry_after_s=0.5),
]


@pytest.mark.parametrize("message", LARGEST, ids=lambda message: type(message).__name__)
def test_a_message_at_its_largest_goes_through_unchanged(message: Message) -> None:
    data = index_messages.INDEX.encode(Frame(FrameKind.CALL, 1, message))
    assert len(data) <= MAX_FRAME + PREFIX
    assert index_messages.INDEX.decode(data[PREFIX:]).message == message


def test_every_message_of_the_family_is_tried_at_its_largest() -> None:
    assert {type(message) for message in LARGEST} == set(index_messages.INDEX.messages)


@pytest.mark.parametrize(
    "bad",
    [
        {"attribute": "unknown:x", "depth": 0},
        {"attribute": "unit:", "depth": 0},
        {"attribute": "unit:\x1b[31m", "depth": 0},
        {"attribute": "node", "depth": 25},
        {"attribute": "node", "depth": -1},
        {"attribute": "node", "depth": 0, "have": b"h" * 65},
    ],
)
def test_an_attribute_or_depth_that_makes_no_sense_is_refused(bad: dict[str, object]) -> None:
    body = pack(["c", 1, "store-adverts", {"advert": SIGNED.to_wire(), "items": [bad]}])
    with pytest.raises(RemoteProtocolError, match="bad store-adverts"):
        index_messages.INDEX.decode(body)


def test_a_page_of_more_than_32_is_refused() -> None:
    body = pack(["c", 1, "query-shard", {"attribute": "node", "limit": 33}])
    with pytest.raises(RemoteProtocolError, match="bad query-shard"):
        index_messages.INDEX.decode(body)
