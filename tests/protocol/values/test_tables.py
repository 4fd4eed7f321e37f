"""Every state machine of the protocol, walked as a table."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import LocalProtocolError
from protocol.values.attempt import ATTEMPT, TASK, AttemptEvent, AttemptStatus, TaskEvent, TaskState
from protocol.values.lease import LEASE, WORKER, LeaseEvent, LeaseState, WorkerEvent
from protocol.wire.table import Table, final, step
from protocol.words import WorkerState
from tools.spec import diagram

TABLES: list[tuple[Table[Any, Any], type[StrEnum], type[StrEnum]]] = [
    (LEASE, LeaseState, LeaseEvent),
    (TASK, TaskState, TaskEvent),
    (WORKER, WorkerState, WorkerEvent),
    (ATTEMPT, AttemptStatus, AttemptEvent),
]
RESTARTS = {AttemptStatus.RESTORED}
"""The states with which a restart of the scheduler begins."""
each = pytest.mark.parametrize(
    ("table", "states", "events"), TABLES, ids=["lease", "task", "worker", "attempt"]
)


@each
def test_every_state_is_a_key_and_every_event_is_used(
    table: Table[Any, Any], states: type[StrEnum], events: type[StrEnum]
) -> None:
    assert set(table) == set(states)
    assert {event for edges in table.values() for event in edges} == set(events)


@each
def test_every_state_can_be_reached_from_the_first(
    table: Table[Any, Any], states: type[StrEnum], events: type[StrEnum]
) -> None:
    reached, todo = set(), [next(iter(table))]
    while todo:
        state = todo.pop()
        if state not in reached:
            reached.add(state)
            todo += table[state].values()
    assert reached == set(states) - RESTARTS


@each
def test_an_end_can_be_reached_from_every_state_of_what_ends(
    table: Table[Any, Any], states: type[StrEnum], events: type[StrEnum]
) -> None:
    ends = {state for state in table if final(table, state)}
    if table in (WORKER, ATTEMPT):
        assert not ends  # a worker continues until its process ends; an attempt ends when its task moves on
        return
    can = set(ends)
    while True:
        more = {state for state, edges in table.items() if state not in can and can & set(edges.values())}
        if not more:
            break
        can |= more
    assert can == set(states)


@given(data=st.data())
def test_a_step_is_the_tables_or_an_error_that_tells_the_story(data: st.DataObject) -> None:
    table, states, events = data.draw(st.sampled_from(TABLES))
    state, event = data.draw(st.sampled_from(list(states))), data.draw(st.sampled_from(list(events)))
    if event in table[state]:
        assert step(table, state, event) is table[state][event]
    else:
        with pytest.raises(LocalProtocolError, match=r"not possible in state .*task 7"):
            step(table, state, event, story="task 7")


@each
def test_the_diagram_shows_every_edge(
    table: Table[Any, Any], states: type[StrEnum], events: type[StrEnum]
) -> None:
    drawn = diagram(table)
    for state, edges in table.items():
        for event, target in edges.items():
            line = next(
                row for row in drawn.splitlines()
                if row.startswith(f"    {str(state).replace('-', '_')} --> {str(target).replace('-', '_')}:")
            )  # fmt: skip
            assert event in line
