"""Join tickets: pasted whole, they return their content; a typing error is detected."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import NotPermitted
from protocol.words import Role
from swarm.net.identity import Identity
from swarm.pools.tickets import Ticket, read_ticket, write_ticket

POOL = Identity.from_seed("pool")
GATE = f"/ip4/192.0.2.7/tcp/4101/p2p/{Identity.from_seed('gate').peer_id}"
TICKET = Ticket(
    pool=POOL.peer_id,
    name="lab two",
    gates=(GATE,),
    role=Role.WORKER,
    until=1_800_000_000,
    secret=bytes(range(16)),
)
TEXT = write_ticket(TICKET)


def test_a_ticket_comes_back_as_it_was_though_a_terminal_broke_its_lines() -> None:
    assert read_ticket(TEXT) == TICKET
    assert read_ticket(f"  {TEXT[:70]}\n{TEXT[70:140]}\r\n {TEXT[140:]}\n") == TICKET
    assert TEXT.startswith("sark1")
    assert TEXT.isalnum()


@settings(max_examples=80)
@given(st.integers(5, len(TEXT) - 1), st.sampled_from("123ABCxyz"))
def test_a_typing_error_is_noticed(place: int, letter: str) -> None:
    wrong = TEXT[:place] + letter + TEXT[place + 1 :]
    if wrong == TEXT:
        return
    with pytest.raises(NotPermitted, match="this ticket is damaged") as error:
        read_ticket(wrong)
    assert error.value.hint == "copy all of it, from sark1 to its last letter"


@pytest.mark.parametrize("end", [5, 6, 9, 100, -1])  # a ticket's length may vary by a letter
def test_an_incomplete_ticket_is_reported_as_such(end: int) -> None:
    with pytest.raises(NotPermitted, match="this ticket is damaged"):
        read_ticket(TEXT[:end])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a ticket"),
        ("hello", "not a ticket"),
        ("sarkasm", "not a ticket"),
        ("sark2" + TEXT[5:], "version 2"),
        (TEXT[:20] + "0" + TEXT[21:], "a character that no ticket has"),
        (TEXT + "1" * 90_000, "too long"),
    ],
)
def test_what_is_no_ticket_is_a_one_line_error(text: str, why: str) -> None:
    with pytest.raises(NotPermitted, match=why) as error:
        read_ticket(text)
    assert "\n" not in error.value.what


@pytest.mark.parametrize("changes", [{"secret": None}, {"to": POOL.peer_id}])
def test_a_ticket_admits_by_a_secret_or_one_peer_and_not_both(changes: dict[str, object]) -> None:
    with pytest.raises(NotPermitted, match="does not understand"):
        read_ticket(write_ticket(TICKET.model_copy(update=changes)))
