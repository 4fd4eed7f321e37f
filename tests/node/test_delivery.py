"""Results on their way to their scheduler: none is lost, none stands in the way of another."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import trio

from node.delivery import Delivery, Links
from node.outbox import Item, Outbox
from protocol.base import MAX_INLINE, Message
from protocol.errors import Unreachable
from protocol.lease import Fence
from protocol.messages import Accepted, Result

ANN = "12D3KooWAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAnnAn"


class Line:
    """A link whose other end takes no results of some tasks."""

    def __init__(self, *never: str) -> None:
        self.peer = ANN
        self.never = never
        self.taken: list[str] = []
        self.broken = False

    async def call(self, message: Message, *, patience_s: float) -> Message:
        assert isinstance(message, Result)
        await trio.lowlevel.checkpoint()
        if message.task in self.never:
            raise Unreachable("no answer")
        self.taken.append(message.task)
        return Accepted()

    async def reset(self) -> None:
        self.broken = True


class Post:
    """An outbox and what carries it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outbox = Outbox(folder, lambda: 100.0)
        self.settled: list[str] = []
        links = Links(lambda peer: None, lambda peer: None)
        self.delivery = Delivery(links, self.outbox, lambda item: self.settled.append(item.task))

    async def put(self, number: int, body: bytes) -> Path:
        sha256 = hashlib.sha256(body).hexdigest()
        item = Item(
            peer=ANN,
            campaign="c-1",
            task=f"c-1/{number}",
            attempt=1,
            lease="w-1.1",
            fence=Fence(incarnation=1, number=number),
            sha256=sha256,
            size=len(body),
            signature=bytes(64),
            stored=float(number),
        )
        await self.outbox.store(item, body)
        return self.folder / f"{sha256}.record"

    async def over(self, link: Any) -> None:
        """Deliver over one link until it breaks or nothing is left to do."""
        async with trio.open_nursery() as nursery:

            async def results() -> None:
                await self.delivery.run_results(link)
                nursery.cancel_scope.cancel()

            nursery.start_soon(results)
            await trio.testing.wait_all_tasks_blocked(0.02)
            nursery.cancel_scope.cancel()


async def test_a_result_that_can_never_be_delivered_stands_in_nobodys_way(tmp_path: Path) -> None:
    post = Post(tmp_path)
    for number in (1, 2, 3):
        await post.put(number, bytes([number]))
    first, second = Line("c-1/1"), Line("c-1/1")
    await post.over(first)
    assert first.broken
    await post.over(second)
    assert post.settled == second.taken == ["c-1/2", "c-1/3"]
    assert len(post.outbox) == 1, "and it is still kept"


async def test_a_result_that_cannot_be_read_now_is_kept_and_sent_later(tmp_path: Path) -> None:
    post = Post(tmp_path)
    record = await post.put(1, b"one")
    await post.put(2, b"two")
    record.unlink()
    record.mkdir()  # reading fails, and not because there is nothing
    link = Line()
    await post.over(link)
    assert not link.broken
    assert post.settled == ["c-1/2"]
    record.rmdir()
    record.write_bytes(b"one")
    await post.over(Line())
    assert post.settled == ["c-1/2", "c-1/1"]
    assert len(post.outbox) == 0


async def test_a_result_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    post = Post(tmp_path)
    (await post.put(1, b"one")).unlink()
    (await post.put(2, bytes(MAX_INLINE + 1))).unlink()
    await post.over(Line())
    assert post.settled == ["c-1/1", "c-1/2"]
