"""Names that look alike are distinguished by their keys."""

from __future__ import annotations

import pytest

from swarm.base.names import disambiguate_names, skeleton

ALIKE = (
    *(("lab-1", "lab-l"), ("lab-1", "LAB-I"), ("lab-1", "lab_1"), ("lab-1", "lab.1"), ("lab 1", "lab--1")),
    *(
        ("box-0", "box-O"),
        ("box-10", "box-lO"),
        ("modern", "modem"),
        ("vvin", "win"),
        ("lab", "lаb"),
        ("mini", "MINI"),
    ),
    *(("caf\u00e9", "cafe\u0301"), ("lab", "l\u200bab"), ("\uff4c\uff41\uff42", "lab"), ("cloud", "doud")),
)


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_names_that_look_alike_are_shown_with_the_ends_of_their_keys(one: str, other: str) -> None:
    labels = disambiguate_names({"key-aaaaaa": one, "key-bbbbbb": other, "key-cccccc": "other"})
    assert labels == {"key-aaaaaa": f"{one} …aaaaaa", "key-bbbbbb": f"{other} …bbbbbb", "key-cccccc": "other"}


@pytest.mark.parametrize(
    ("one", "other"), [("lab-1", "lab-2"), ("lab-1", "lab-11"), ("lab1", "lab-1"), ("pi", "pa")]
)
def test_names_that_differ_stay_as_they_are(one: str, other: str) -> None:
    assert disambiguate_names({"a": one, "b": other}) == {"a": one, "b": other}
    assert skeleton(one) != skeleton(other)


def test_keys_that_end_alike_are_shown_longer() -> None:
    labels = disambiguate_names({"x-1-abcdef": "lab", "x-2-abcdef": "lab"})
    assert set(labels.values()) == {"lab …1-abcdef", "lab …2-abcdef"}


def test_a_name_cannot_pretend_to_have_a_tail_of_another_key() -> None:
    labels = disambiguate_names({"key-aaaaaa": "lab", "key-bbbbbb": "lab", "key-cccccc": "lab …aaaaaa"})
    assert len(set(labels.values())) == 3
    assert disambiguate_names(labels) == labels
