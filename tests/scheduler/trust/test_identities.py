"""A device id belongs to the key that it was first used with, and to other keys only where one signer says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.errors import NotPermitted, ResourceError, SettingsError
from scheduler.trust.book import PoolName, TrustBook
from scheduler.trust.identities import DeviceClaims, clashes, disputed
from scheduler.trust.pinned import bind_keys, claim_device, pin_devices, pinned_file, read_pinned
from swarm.base.home import Home
from swarm.net.identity import Identity
from tests.scheduler.core_parts import advert

A, B, C = (Identity.from_seed(f"key {letter}").peer_id for letter in "abc")
LAB = {A: PoolName("lab", "pool-1"), B: PoolName("lab", "pool-1")}


def claims(book: TrustBook) -> DeviceClaims:
    return DeviceClaims(lambda: book)


def test_a_device_id_belongs_to_the_key_that_was_pinned_and_the_clash_names_both_and_the_command() -> None:
    book = TrustBook("me", listed=frozenset({A, B}), pinned={"d1": (A,)})
    assert claims(book).clash("d1", A) is None
    clash = claims(book).clash("d1", B)
    assert clash is not None
    assert (clash.holder, clash.claimant) == (A, B)
    assert f"sark-node trust {B} --same-device-as {A}" in str(clash)


def test_in_results_one_key_stands_for_all_workers_of_a_device_and_a_copied_id_changes_nothing() -> None:
    bound = claims(TrustBook("me", listed=frozenset({A, B}), pinned={"d1": (A, B)}))
    assert [bound.key_of("d1", key) for key in (A, B, C)] == [A, A, C]
    own = claims(TrustBook("me", own=frozenset({A, B}), signed={"d1": {"home": frozenset({A, B})}}))
    assert [own.key_of("d1", key) for key in (A, B, C)] == [min(A, B), min(A, B), C]
    assert own.key_of("d2", B) == B


@pytest.mark.parametrize(
    ("book", "claimants", "pair"),
    [
        (TrustBook("me", listed=frozenset({A, B})), (A, B), (A, B)),
        (TrustBook("me"), (A, B), (A, B)),
        (TrustBook("me", pinned={"d1": (C,)}, listed=frozenset({A, B})), (A, B, C), (A, B)),
        (TrustBook("me", own=frozenset({A}), listed=frozenset({B})), (A, B), (A, B)),
        (TrustBook("me", listed=frozenset({A})), (A, B, C), None),
        (TrustBook("me", listed=frozenset({A, B}), pinned={"d1": (B,)}), (A, B), None),
        (TrustBook("me", pinned={"d1": (B,)}), (A, B), None),
        (TrustBook("me", own=frozenset({A, B})), (A, B), (A, B)),
        (TrustBook("me", own=frozenset({A, B}), home=B), (A, B), None),
        (TrustBook("me", pools=LAB, signed={"d1": {"pool-1": frozenset({A})}}), (A, B), None),
        (TrustBook("me", listed=frozenset({A, B})), (A,), None),
    ],
)
def test_a_device_is_disputed_where_two_keys_have_equal_right_to_it(
    book: TrustBook, claimants: tuple[str, ...], pair: tuple[str, str] | None
) -> None:
    first, second = sorted((A, B))
    adverts = [advert(1).model_copy(update={"peer": peer, "device": "d1"}) for peer in claimants]
    found = disputed(book, "d1", adverts)
    assert (None if found is None else (found.one, found.other)) == (
        None if pair is None else (first, second)
    )
    assert disputed(book, "d2", adverts) is None
    if found is not None:
        words = str(found.error()) + found.error().hint
        assert A in words
        assert B in words
        assert f"sark-node trust {first} --device d1" in words


def test_whoever_has_a_ticket_of_the_homes_pool_does_not_get_the_id_of_the_homes_own_machine() -> None:
    """The list contains what the joining worker claimed about itself."""
    book = TrustBook("me", home=A, own=frozenset({A, B}), signed={"d1": {"home": frozenset({B})}})
    seen = claims(book)
    for key in (B, A, B):
        seen.clash("d1", key)
    assert seen.holder("d1") == A
    assert seen.clash("d1", B) is not None
    assert (seen.key_of("d1", A), seen.key_of("d1", B)) == (A, B)


def test_the_user_says_whose_a_device_is(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    claim_device(home, A, "d1")
    assert read_pinned(home) == {"d1": (A,)}
    assert bind_keys(home, B, A) == "d1"
    claim_device(home, B, "d1")
    assert read_pinned(home) == {"d1": (A, B)}
    claim_device(home, C, "d1")
    assert read_pinned(home) == {"d1": (C,)}
    with pytest.raises(SettingsError, match="not a device id"):
        claim_device(home, A, "d/1")


def test_without_a_pin_the_first_claim_counts() -> None:
    seen = claims(TrustBook("me", listed=frozenset({A, B})))
    assert seen.clash("d1", B) is None
    assert seen.clash("d1", A) is not None
    assert seen.clash("d2", A) is None, "another device"


@pytest.mark.parametrize("pinned", [{"d1": (C,)}, {}])
def test_a_trusted_key_takes_the_id_from_a_strangers_whoever_came_first(
    pinned: dict[str, tuple[str, ...]],
) -> None:
    seen = claims(TrustBook("me", own=frozenset({A}), pinned=pinned))
    assert seen.clash("d1", C) is None, "nobody else claims it"
    assert seen.clash("d1", A) is None
    assert seen.clash("d1", C) is not None


def test_a_stranger_never_takes_the_id_from_a_trusted_key() -> None:
    seen = claims(TrustBook("me", own=frozenset({A}), pinned={"d1": (A,)}))
    assert seen.clash("d1", C) is not None
    assert seen.holder("d1") == A


def test_a_stranger_has_no_id_that_a_pool_lists_although_that_worker_was_never_seen() -> None:
    book = TrustBook("me", pools=LAB, signed={"d1": {"pool-1": frozenset({A})}})
    assert claims(book).clash("d1", C) is not None


@pytest.mark.parametrize(
    ("book", "bound"),
    [
        (TrustBook("me", own=frozenset({A, B}), signed={"d1": {"home": frozenset({A, B})}}), True),
        (TrustBook("me", own=frozenset({A, B}), signed={"d1": {"home": frozenset({A})}}), False),
        (TrustBook("me", own=frozenset({A, B})), False),
        (TrustBook("me", pools=LAB, signed={"d1": {"pool-1": frozenset({A, B})}}), True),
        (
            TrustBook("me", pools=LAB, signed={"d1": {"pool-1": frozenset({A}), "pool-2": frozenset({B})}}),
            False,
        ),
        (TrustBook("me", pools=LAB, signed={"d1": {"pool-1": frozenset({A})}}), False),
        (TrustBook("me", listed=frozenset({A, B}), pinned={"d1": (A, B)}), True),
        (TrustBook("me", listed=frozenset({A, B})), False),
    ],
)
def test_several_keys_are_one_device_only_when_one_signer_says_so(book: TrustBook, bound: bool) -> None:
    seen = claims(book)
    assert seen.clash("d1", A) is None
    assert (seen.clash("d1", B) is None) is bound


def test_among_adverts_the_trusted_claim_counts_in_whatever_order_they_come() -> None:
    book = TrustBook("me", own=frozenset({A}))
    adverts = [advert(0).model_copy(update={"peer": peer, "device": "d1"}) for peer in (C, A, B)]
    for order in (adverts, adverts[::-1]):
        assert set(clashes(book, order)) == {B, C}


def test_pins_are_kept_and_a_trusted_key_replaces_a_strangers(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    assert read_pinned(home) == {}
    pin_devices(home, {"d1": A, "d2": B})
    pin_devices(home, {"d1": C})
    assert read_pinned(home) == {"d1": (C,), "d2": (B,)}


def test_a_user_binds_another_key_to_a_device_that_was_used(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    with pytest.raises(NotPermitted, match="this home has not used a device of"):
        bind_keys(home, B, A)
    pin_devices(home, {"d1": A})
    assert bind_keys(home, B, A) == "d1"
    pin_devices(home, {"d1": A})
    assert read_pinned(home) == {"d1": (A, B)}, "using it again changes nothing"


@pytest.mark.parametrize("text", ["{", '{"format": 2}', '{"devices": {"d1": []}}'])
def test_a_damaged_file_is_an_error(tmp_path: Path, text: str) -> None:
    home = Home.at(tmp_path)
    pinned_file(home).parent.mkdir(parents=True)
    pinned_file(home).write_text(text)
    with pytest.raises(ResourceError, match="is damaged"):
        read_pinned(home)
