"""Serves `/sark/gate/1`: the gate's status for its operators, and visitors' tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

import trio

from gate.admission.policy import AdmissionPolicy
from protocol.errors import RemoteProtocolError
from protocol.messages.gate import GATE, GateSnapshot, GateStatus
from protocol.messages.index import RefusedMessage
from protocol.messages.work import ShowCredentials
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason
from swarm.net.limits import RateLimit
from swarm.net.link import Link, serve_links
from swarm.net.network import Network

ASKS_PER_S: Final = 2.0
"""Of each peer, on average; bursts up to twice that."""


class GateHandlers:
    """Answers `/sark/gate/1`."""

    def __init__(self, policy: AdmissionPolicy) -> None:
        self._policy = policy
        self._asks = RateLimit.per_second(ASKS_PER_S)
        self.refused: Counter[str] = Counter()
        """Refused calls, by reason."""

    def serve(self, network: Network, snapshot: Callable[[], GateSnapshot]) -> None:
        """Answer any peer; operators get `snapshot`."""
        self._snapshot = snapshot
        serve_links(network, ProtocolId.GATE, GATE, self.answer)

    async def answer(self, link: Link, message: Message) -> Message:
        """Serve one call of a peer."""
        answer = self._answer(link, message)
        if isinstance(answer, RefusedMessage):
            self.refused[answer.reason] += 1
        return answer

    def _answer(self, link: Link, message: Message) -> Message:
        now = trio.current_time()
        match message:
            case ShowCredentials():
                return self._policy.authenticate(link.peer, message, now)
            case GateStatus():
                wait = self._asks.wait(now, link.peer)
                if wait:
                    return RefusedMessage(
                        reason=Reason.OVERLOADED, detail="too many calls", retry_after_s=wait
                    )
                if not self._policy.operates(link.peer):
                    return RefusedMessage(
                        reason=Reason.NOT_ALLOWED, detail="only its operators may read this gate's status"
                    )
                return self._snapshot()
        raise RemoteProtocolError(f"a {type(message).__name__} is an answer, not a call")
