"""The costs that a worker declares for its calls."""

from __future__ import annotations

from node.serve.costs import cost_us
from protocol.messages.pool import ManifestMessage
from protocol.messages.work import Probe, Release, Renew, Shape, StatusRequest
from protocol.values.requirement import Requirement, parse_clause
from protocol.wire.base import Message


def probe(shapes: int, *clauses: str) -> Probe:
    need = Requirement(clauses=tuple(map(parse_clause, clauses)))
    return Probe(campaign="c", shapes=(Shape(unit="u", requirement=need, model="a" * 64, size=1),) * shapes)


def test_costs_follow_the_message() -> None:
    rising: tuple[Message, ...] = (
        Release(held=()),
        probe(1),
        probe(1, "ram >= 8 GiB"),
        probe(1, 'soc ~ "[a-m]*"'),
        probe(4, 'soc ~ "[a-m]*"'),
        ManifestMessage(body=b"x" * 48_000, signature=bytes(64)),
    )
    costs = [cost_us(message) for message in rising]
    assert costs == sorted(costs)
    assert len(set(costs)) == len(costs)
    assert cost_us(Renew(held=())) == 0.0
    assert cost_us(StatusRequest()) > 0.0
