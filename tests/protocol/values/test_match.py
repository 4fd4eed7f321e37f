"""Clauses as people write them, and the one function that decides whether a device fits."""

from __future__ import annotations

import fnmatch
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import CampaignError
from protocol.values.advert import Advert, GpuInfo, UnitOffer
from protocol.values.match import ClauseState, compile_requirement, match, match_clause, requirement_cost_us
from protocol.values.requirement import (
    ATTRIBUTES,
    Attribute,
    Clause,
    Op,
    Requirement,
    attribute_of,
    parse_clause,
    parse_size,
    show_size,
)

GIB = 1024**3
LAPTOP = Advert(
    peer="12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN",
    seq=1,
    device="d-laptop",
    name="laptop-7",
    os="Linux 6.8 (Debian 12)",
    arch="x86_64",
    soc="AMD Ryzen 7 7840U",
    cores=8,
    threads=16,
    ram=16 * GIB,
    units=(UnitOffer(unit="CPU (ONNX)", runtime="onnxruntime 1.31.1"),),
    labels={"site": "lab"},
)
SERVER = LAPTOP.model_copy(
    update={
        "device": "d-server",
        "ram": 512 * GIB,
        "gpus": (GpuInfo(name="NVIDIA H100 80GB", vram=80 * GIB), GpuInfo(name="NVIDIA T4", vram=16 * GIB)),
        "labels": {},
    }
)
SAYS_LITTLE = Advert(peer=LAPTOP.peer, seq=1, device="d", name="n")


@pytest.mark.parametrize(
    ("clause", "advert", "met"),
    [
        ("ram >= 16 GiB", LAPTOP, ClauseState.MET),
        ("ram > 16 GiB", LAPTOP, ClauseState.UNMET),
        ("ram >= 16 GiB", SAYS_LITTLE, ClauseState.UNKNOWN),
        ("ram == 17179869184 B", LAPTOP, ClauseState.MET),
        ("cores >= 8", LAPTOP, ClauseState.MET),
        ("cores < 8", LAPTOP, ClauseState.UNMET),
        ("cores != 8", LAPTOP, ClauseState.UNMET),
        ("soc ~ ryzen", LAPTOP, ClauseState.MET),
        ('soc ~ "Apple M*"', LAPTOP, ClauseState.UNMET),
        ("soc ~ amd*7840u", LAPTOP, ClauseState.MET),
        ("os ~ linux*", LAPTOP, ClauseState.MET),
        ("arch in x86_64, arm64", LAPTOP, ClauseState.MET),
        ("arch in arm64", LAPTOP, ClauseState.UNMET),
        ('units has "CPU (ONNX)"', LAPTOP, ClauseState.MET),
        ('units has "GPU (ONNX)"', LAPTOP, ClauseState.UNMET),
        ("units has CPU", LAPTOP, ClauseState.UNMET),
        ("gpu ~ H100", SERVER, ClauseState.MET),
        ("gpu ~ H100", LAPTOP, ClauseState.UNMET),
        ("vram >= 40 GiB", SERVER, ClauseState.MET),
        ("vram >= 1 GiB", LAPTOP, ClauseState.UNMET),
        ("label.site == lab", LAPTOP, ClauseState.MET),
        ("label.site == lab", SERVER, ClauseState.UNMET),
        ("label.site != lab", SERVER, ClauseState.MET),
        ("device == d-laptop", LAPTOP, ClauseState.MET),
        ("sandbox in full, partial", LAPTOP, ClauseState.UNMET),
        ("soc ~ x", SAYS_LITTLE, ClauseState.UNKNOWN),
    ],
)
def test_a_clause_against_a_device(clause: str, advert: Advert, met: ClauseState) -> None:
    assert match_clause(parse_clause(clause), advert).met is met


def test_a_verdict_speaks_of_each_clause_by_itself() -> None:
    """A device with 24 GB does not meet a need for 48 GB because another dimension is larger."""
    requirement = Requirement(clauses=(parse_clause("ram >= 64 GiB"), parse_clause("cores >= 2")))
    verdict = match(requirement, LAPTOP)
    assert not verdict.fits
    assert [item.met for item in verdict.clauses] == [ClauseState.UNMET, ClauseState.MET]
    assert str(verdict.missing[0]) == "ram: has 16 GiB, needs >= 64 GiB"


def test_a_missing_label_is_reported_as_not_set() -> None:
    assert (
        str(match_clause(parse_clause("label.site == lab"), SERVER)) == "label.site is not set, needs == lab"
    )
    assert str(match_clause(parse_clause("soc ~ x"), SAYS_LITTLE)) == "soc is not known, needs ~ x"


def test_no_clause_fits_every_device() -> None:
    assert match(Requirement(), SAYS_LITTLE).fits


def test_an_unknown_clause_never_counts_as_met() -> None:
    verdict = match(Requirement(clauses=(Clause(attribute="neural_cores", op=Op.GE, value=2),)), LAPTOP)
    assert not verdict.fits
    assert verdict.clauses[0].met is ClauseState.UNKNOWN


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("rma >= 8 GiB", "unknown attribute 'rma'", "did you mean 'ram'?"),
        ("lable.site == lab", "unknown attribute 'lable.site'", "label.NAME"),
        ("ram >= lots", "'lots' is not a size", "8 GiB"),
        ("ram >= 80", "'80' is not a size", "8 GiB"),
        ("ram ~ 8", "ram cannot be compared by ~", "<"),
        ("cores >= many", "'many' is not a number", "plain number"),
        ("cores >= nan", "'nan' is not a number", "plain number"),
        ("cores >= inf", "'inf' is not a number", "plain number"),
        ("units == x", "units cannot be compared by ==", "has"),
        ("ram >=", "no value", "after the operator"),
        ("just words", "cannot read clause", "attribute operator value"),
        ("name == caf\u00e9", "cannot match anything", "ASCII"),
        ("", "cannot read clause", "attribute operator value"),
    ],
)
def test_a_clause_that_cannot_be_meant_is_an_error_with_a_hint(text: str, what: str, hint: str) -> None:
    with pytest.raises(CampaignError) as caught:
        parse_clause(text)
    assert what in caught.value.what
    assert hint in caught.value.hint


@given(st.text(max_size=60))
def test_any_text_is_a_clause_or_a_campaign_error(text: str) -> None:
    try:
        clause = parse_clause(text)
    except CampaignError:
        return
    assert attribute_of(clause.attribute) is not None
    assert match_clause(clause, LAPTOP).met in ClauseState


@given(st.integers(0, 2**50))
def test_a_size_is_read_as_it_is_shown_up_to_a_twentieth(size: int) -> None:
    again = parse_size(show_size(size))
    assert again is not None
    assert abs(again - size) <= size / 20 + 1


@pytest.mark.parametrize(
    ("text", "size"),
    [("8 GiB", 8 * GIB), ("8GB", 8_000_000_000), ("500 MB", 500_000_000), ("1.5 KiB", 1536), ("7", 7), ("8g", 8_000_000_000)],
)  # fmt: skip
def test_sizes_know_binary_and_decimal_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "8 XiB", "-1 GiB", "8 GiB extra"])
def test_what_is_no_size_is_none(text: str) -> None:
    assert parse_size(text) is None


def test_every_attribute_can_be_read_from_an_advert_that_says_little() -> None:
    for attribute in ATTRIBUTES.values():
        attribute.read(SAYS_LITTLE)
        assert attribute.meaning


ops = st.sampled_from(list(Op))
values = st.one_of(
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8), max_size=3).map(tuple),
)


@given(attribute=st.sampled_from([*ATTRIBUTES, "label.site", "nonsense"]), op=ops, value=values)
def test_no_clause_a_peer_can_send_breaks_the_match(attribute: str, op: Op, value: object) -> None:
    clause = Clause.model_validate({"attribute": attribute, "op": op, "value": value})
    for advert in (LAPTOP, SERVER, SAYS_LITTLE):
        verdict = match_clause(clause, advert)
        assert len(str(verdict)) <= 200


# -- compiled -------------------------------------------------------------------------------------------------------------------

words = st.text(st.sampled_from("aAbB1 -."), max_size=6)
patterns = st.text(st.sampled_from("aAbB1*?[]!-"), max_size=10)
adverts = st.builds(
    lambda soc, os, cores, gpus, label: LAPTOP.model_copy(
        update={
            "soc": soc,
            "os": os,
            "cores": cores,
            "gpus": tuple(GpuInfo(name=name) for name in gpus),
            "labels": {} if label is None else {"site": label},
        }
    ),
    words,
    words,
    st.none() | st.integers(1, 4),
    st.lists(words, max_size=3),
    st.none() | words,
)
clauses = st.builds(
    lambda attribute, op, value: Clause.model_validate({"attribute": attribute, "op": op, "value": value}),
    st.sampled_from(["soc", "os", "cores", "gpu", "vram", "ram", "units", "label.site", "nonsense"]),
    ops,
    words
    | patterns
    | st.integers(0, 4)
    | st.sampled_from([1.0, 2.5])
    | st.lists(words, max_size=3).map(tuple),
)


def like(text: str, pattern: str) -> bool:
    """The original meaning of `~`."""
    if not any(mark in pattern for mark in "*?["):
        pattern = f"*{pattern}*"
    return fnmatch.fnmatchcase(text.lower(), pattern.lower())


@given(text=words, pattern=patterns)
def test_a_pattern_means_what_fnmatch_means(text: str, pattern: str) -> None:
    met = match_clause(
        Clause(attribute="soc", op=Op.LIKE, value=pattern), LAPTOP.model_copy(update={"soc": text})
    )
    assert met.met is (
        ClauseState.UNKNOWN if not text else ClauseState.MET if like(text, pattern) else ClauseState.UNMET
    )


@given(needs=st.lists(clauses, max_size=4).map(tuple), advert=adverts)
def test_a_compiled_requirement_finds_the_devices_that_the_match_finds(
    needs: tuple[Clause, ...], advert: Advert
) -> None:
    requirement = Requirement(clauses=needs)
    assert compile_requirement(requirement)(advert) is match(requirement, advert).fits


def test_a_compiled_requirement_stops_at_its_cheapest_unmet_clause(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(attribute: Attribute) -> Attribute:
        def counting(advert: Advert) -> object:
            read.append(attribute.name)
            return attribute.read(advert)

        return replace(attribute, read=counting)  # type: ignore[arg-type]

    for name in ("soc", "os", "arch", "cores"):
        monkeypatch.setitem(ATTRIBUTES, name, counted(ATTRIBUTES[name]))
    requirement = Requirement(
        clauses=tuple(map(parse_clause, ("soc ~ [a-z]yzen", "os ~ linux", "cores >= 99", "arch == x86_64")))
    )
    predicate = compile_requirement(requirement)
    assert not predicate(LAPTOP)
    assert read == ["arch", "cores"]
    assert predicate.cost_us == pytest.approx(requirement_cost_us(requirement))


def test_a_requirement_that_no_device_meets_reads_no_advert() -> None:
    clause = Clause(attribute="nonsense", op=Op.EQ, value="x")
    costly = Clause(attribute="soc", op=Op.LIKE, value="[a-z]*")
    predicate = compile_requirement(Requirement(clauses=(costly, clause)))
    assert len(predicate.conditions) == 1
    assert not predicate(LAPTOP)


TWO = SERVER.model_copy(
    update={
        "units": tuple(
            UnitOffer(unit=unit, runtime="r") for unit in ("GPU (ONNX)", "GPU 3 (ONNX)", "CPU (ONNX)")
        ),
        "gpus": (
            GpuInfo(name="NVIDIA T4", vram=16 * GIB, number=1),
            GpuInfo(name="NVIDIA H100", vram=80 * GIB, number=3),
        ),
    }
)


@pytest.mark.parametrize(
    ("unit", "clause", "fits"),
    [
        ("GPU (ONNX)", "vram >= 16 GiB", True),
        ("GPU (ONNX)", "vram >= 40 GiB", False),
        ("GPU (ONNX)", "gpu ~ H100", False),
        ("GPU 3 (ONNX)", "vram >= 40 GiB", True),
        ("GPU 3 (ONNX)", "gpu ~ T4", False),
        ("CPU (ONNX)", "vram >= 40 GiB", True),
    ],
)
def test_a_unit_on_a_gpu_has_the_memory_of_its_own_gpu(unit: str, clause: str, fits: bool) -> None:
    for clauses in ([f"units has {unit}", clause], [clause, f"units has {unit}"]):
        requirement = Requirement(clauses=tuple(map(parse_clause, clauses)))
        assert match(requirement, TWO).fits is fits
        assert compile_requirement(requirement)(TWO) is fits


def test_a_gpu_that_an_advert_has_no_room_for_is_not_known() -> None:
    small = TWO.model_copy(update={"gpus": TWO.gpus[:1]})
    requirement = Requirement(clauses=(parse_clause("units has GPU 3 (ONNX)"), parse_clause("vram < 1 GiB")))
    assert [item.met for item in match(requirement, small).clauses] == [ClauseState.MET, ClauseState.UNKNOWN]
    assert not compile_requirement(requirement)(small)
