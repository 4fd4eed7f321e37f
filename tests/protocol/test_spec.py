"""The written protocol matches the code, and its bytes do not change."""

from __future__ import annotations

from pathlib import Path

import protocol
from protocol.words import ProtocolId
from tools.spec import SECTIONS, VOCABULARIES, render

PAGE = Path(next(iter(protocol.__path__))) / "SPEC.md"
GLOSSARY = PAGE.with_name("GLOSSARY.md")


def test_the_generated_parts_of_the_spec_are_what_the_code_says() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert render(page) == page, "SPEC.md differs from the code: run `make spec` and read the difference"


def test_every_section_stands_in_the_page_once() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in SECTIONS:
        assert page.count(f"<!-- begin {name} -->") == 1, name
        assert page.count(f"<!-- end {name} -->") == 1, name


def test_rendering_shows_a_change_of_the_code() -> None:
    """The check above can fail: a page with different content is rewritten."""
    page = PAGE.read_text(encoding="utf-8")
    assert render(page.replace("`commit`", "`promise`")) == page


def test_every_family_has_a_vocabulary_and_no_type_is_used_twice() -> None:
    assert set(VOCABULARIES) == set(ProtocolId)
    for vocabulary in VOCABULARIES.values():
        assert len({message.type for message in vocabulary.messages} - {""}) == len(vocabulary.messages)


def test_the_glossary_is_in_order_and_says_each_word_once() -> None:
    words = [
        line.split("**")[1]
        for line in GLOSSARY.read_text(encoding="utf-8").splitlines()
        if line.startswith("| **")
    ]
    assert words == sorted(words)
    assert len(set(words)) == len(words)
