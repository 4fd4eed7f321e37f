"""Honest strangers beside an attack: `python -m tests.rig.honest TARGET` calls the gate and a worker every 20 ms until its standard input
ends. It prints one JSON line for each call: when the call was due, its kind, its milliseconds, and whether an answer came. Its three keys
take turns, so that none calls more often than an eager reader.

A call is made when it is due, whether or not the one before it was answered, so that a stalled node is seen to stall. Once a second a
newcomer with a fresh key connects to the gate.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
import time
from contextlib import AsyncExitStack
from typing import Final

import structlog
import trio

from protocol.errors import RemoteProtocolError, SarkError
from protocol.messages import index as index_messages
from protocol.messages.health import HEALTH, Ping
from protocol.messages.work import WORK, StatusRequest
from protocol.values.index_keys import EVERYBODY
from protocol.wire.base import Message
from protocol.words import ProtocolId
from swarm.join.host import open_host
from swarm.net.identity import Identity
from swarm.net.links import Links
from tests.rig.attack import Node, Target

EVERY_S: Final = 0.02
NEWCOMER_S: Final = 1.0
KEYS: Final = 3
WITHIN_S: Final = 5.0
PAGE: Final = index_messages.QueryShard(attribute=EVERYBODY, limit=8)
MOST: Final = 250
"""Maximum number of waiting calls. A call that is due beyond it is not made, and counts as unanswered."""


Call = tuple[str, Links, Node, Message]


class Honest:
    """The calls of a few clients, in turn."""

    def __init__(self, target: Target, nursery: trio.Nursery) -> None:
        self.target, self.nursery = target, nursery
        self.waiting = 0

    async def run(self, stack: AsyncExitStack) -> None:
        clients = [await self._client(stack) for _ in range(KEYS)]
        due = trio.current_time()
        for name, links, node, message in itertools.cycle(itertools.chain(*zip(*clients, strict=True))):
            await trio.sleep_until(due)
            if self.waiting < MOST:
                self.nursery.start_soon(self._call, name, links, node, message, due)
            else:
                say_line(name, due, WITHIN_S, False)
            due += EVERY_S

    async def _client(self, stack: AsyncExitStack) -> list[Call]:
        network = await stack.enter_async_context(
            open_host(Identity.fresh(), bootstrap=(self.target.gate.gate,))
        )
        index = Links(network, index_messages.FAMILY, index_messages.INDEX, self.nursery)
        health = Links(network, ProtocolId.HEALTH, HEALTH, self.nursery)
        work = Links(network, ProtocolId.WORK, WORK, self.nursery)
        return [
            ("query gate", index, self.target.gate, PAGE),
            ("ping gate", health, self.target.gate, Ping()),
            ("query worker", index, self.target.workers[0], PAGE),
            ("ask worker", work, self.target.workers[0], StatusRequest()),
        ]

    async def _call(self, name: str, links: Links, node: Node, message: Message, due: float) -> None:
        self.waiting += 1
        answered = False
        try:
            with trio.move_on_at(due + WITHIN_S):
                await links.call(node.peer_id, node.addresses, message, max_wait_s=WITHIN_S)
                answered = True
        except (SarkError, RemoteProtocolError):
            pass
        self.waiting -= 1
        took = trio.current_time() - due
        say_line(name, due, took if answered else max(took, WITHIN_S), answered)

    async def newcomers(self) -> None:
        """Connect newcomers, one after the other."""
        due = trio.current_time()
        while True:
            answered = False
            with trio.move_on_at(due + WITHIN_S):
                try:
                    async with open_host(Identity.fresh()) as network, trio.open_nursery() as nursery:
                        links = Links(network, ProtocolId.HEALTH, HEALTH, nursery)
                        gate = self.target.gate
                        await links.call(gate.peer_id, gate.addresses, Ping(), max_wait_s=WITHIN_S)
                        answered = True
                        say_line("newcomer", due, trio.current_time() - due, True)
                        nursery.cancel_scope.cancel()
                except* SarkError:
                    pass
            if not answered:
                say_line("newcomer", due, WITHIN_S, False)
            due = max(due + NEWCOMER_S, trio.current_time())
            await trio.sleep_until(due)


def say_line(name: str, due: float, took_s: float, answered: bool) -> None:
    at = time.monotonic() - (trio.current_time() - due)
    print(json.dumps([at, name, round(1000 * took_s, 2), answered]), flush=True)


async def _run(target: Target) -> None:
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        honest = Honest(target, nursery)
        nursery.start_soon(honest.run, stack)
        nursery.start_soon(honest.newcomers)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.CRITICAL)
    trio.run(_run, Target.read(sys.argv[1]))
