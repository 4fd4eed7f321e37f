"""Keys of the index: publisher, holder and reader must compute the same ones, and a reader must miss no device."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.values.advert import Advert, GpuInfo, UnitOffer
from protocol.values.index_keys import (
    EVERYBODY,
    attributes_of,
    campaign_attribute,
    index_alternatives,
    may_claim,
    named_peers,
    ram_bucket,
    shard_key,
    shard_prefix,
)
from protocol.values.match import match
from protocol.values.requirement import Clause, Op, Requirement, parse_clause

GIB = 2**30
UNITS = ("CPU (ONNX)", "GPU (ONNX)", "NPU")


def advert(**fields: object) -> Advert:
    plain: dict[str, object] = {"peer": "1" * 52, "seq": 1, "device": "d1", "name": "n1"}
    return Advert.model_validate(plain | fields)


def needs(*clauses: str) -> Requirement:
    return Requirement(clauses=tuple(parse_clause(text) for text in clauses))


def test_an_advert_lies_under_each_thing_it_says() -> None:
    result = attributes_of(
        advert(
            ram=48 * GIB,
            units=(UnitOffer(unit="CPU (ONNX)", runtime="onnxruntime 1"),),
            gpus=(GpuInfo(name="H100", vram=1), GpuInfo(name="H100", vram=1)),
            labels={"site": "lab"},
            models=("a" * 64,),
        )
    )
    assert result == (
        "node",
        "device:d1",
        "unit:CPU (ONNX)",
        "ram:35",
        "gpu:H100",
        "label:site=lab",
        f"model:{'a' * 64}",
    )


def test_a_worker_of_pools_lies_under_each_and_is_found_by_their_names() -> None:
    both = advert(pools=("lab", "lab two"))
    assert {"pool:lab", "pool:lab two"} <= set(attributes_of(both))
    assert may_claim(both, "pool:lab")
    assert not may_claim(both, "pool:other")
    expected = needs('pools has "lab two"')
    assert ("pool:lab two",) in index_alternatives(expected)
    assert match(expected, both).fits
    assert not match(expected, advert(pools=("lab",))).fits
    assert not match(expected, advert()).fits


def test_the_keys_of_a_shard_never_change() -> None:
    # peers of different versions must meet: these bytes are part of the protocol
    assert shard_key("", "unit:CPU (ONNX)", 0, 0).hex() == (
        "3ad30e570cfc8f7c93fcfc25b11a9903b32afd9d2ee8f174c5ecd00e583c0562"
    )
    assert (
        shard_key("lab", "node", 3, 5).hex()
        == "088296d2fc0198c6e83c6c052114256c0cfe1d1561677edcf112b4ae6ecc20a6"
    )


def test_pool_attribute_depth_and_prefix_each_make_another_key() -> None:
    keys = {
        shard_key(pool, attribute, depth, prefix)
        for pool in ("", "lab")
        for attribute in ("node", "unit:NPU")
        for depth in (1, 2)
        for prefix in (0, 1)
    }
    assert len(keys) == 16


@given(st.binary(min_size=32, max_size=32), st.integers(0, 23))
def test_a_deeper_shard_lies_in_the_one_above(key: bytes, depth: int) -> None:
    assert shard_prefix(key, depth + 1) >> 1 == shard_prefix(key, depth)
    assert 0 <= shard_prefix(key, depth) < 2**depth or depth == 0


@given(st.integers(1, 2**50))
def test_ram_lies_in_the_bucket_of_its_power_of_two(ram: int) -> None:
    bucket = ram_bucket(ram)
    assert 2**bucket <= ram
    assert ram < 2 ** (bucket + 1) or bucket == 42


def test_a_unit_is_read_before_everybody() -> None:
    assert index_alternatives(needs('units has "CPU (ONNX)"')) == (("unit:CPU (ONNX)",), (EVERYBODY,))


def test_memory_is_read_from_its_bucket_up() -> None:
    buckets = tuple(f"ram:{bucket}" for bucket in range(33, 43))
    assert index_alternatives(needs("ram >= 8 GiB")) == (buckets, (EVERYBODY,))
    assert index_alternatives(needs("ram >= 8 GiB", 'units has "NPU"')) == (
        ("unit:NPU",),
        buckets,
        (EVERYBODY,),
    )
    assert index_alternatives(needs("ram >= 8 TiB"))[0] == ("ram:42",)


def test_an_upper_limit_of_memory_is_no_way_to_read() -> None:
    assert index_alternatives(needs("ram <= 8 GiB")) == ((EVERYBODY,),)


def test_one_of_several_labels_is_read_from_all_of_them() -> None:
    assert index_alternatives(needs("label.site in lab, attic"))[0] == ("label:site=lab", "label:site=attic")


def test_a_negated_or_vague_clause_is_no_way_to_read() -> None:
    assert index_alternatives(needs("label.site != lab", "gpu ~ H100", 'soc ~ "Apple*"')) == ((EVERYBODY,),)


def test_a_peer_that_is_asked_for_is_known() -> None:
    assert named_peers(Requirement(clauses=(Clause(attribute="peer", op=Op.EQ, value="1" * 52),))) == {
        "1" * 52
    }
    assert named_peers(needs("peer in [a, b]")) == {"a", "b"}
    assert named_peers(needs("ram >= 1 GiB")) == set()


def test_only_what_an_advert_says_may_be_claimed_but_for_campaigns() -> None:
    one = advert(labels={"site": "lab"})
    assert may_claim(one, "label:site=lab")
    assert not may_claim(one, "label:site=attic")
    assert not may_claim(one, "unit:NPU")
    assert may_claim(one, campaign_attribute("c-1"))


clauses = st.one_of(
    st.sampled_from(UNITS).map(lambda unit: Clause(attribute="units", op=Op.HAS, value=unit)),
    st.builds(
        lambda op, gib: Clause(attribute="ram", op=op, value=gib * GIB),
        st.sampled_from((Op.GE, Op.GT, Op.EQ, Op.LT)),
        st.integers(1, 64),
    ),
    st.sampled_from("ab").map(lambda value: Clause(attribute="label.site", op=Op.EQ, value=value)),
    st.sampled_from("ab").map(lambda value: Clause(attribute="gpu", op=Op.HAS, value=value)),
    st.just(Clause(attribute="device", op=Op.IN, value=("d1", "d2"))),
)
adverts = st.builds(
    lambda ram, units, site, gpus, device: advert(
        ram=ram,
        units=tuple(UnitOffer(unit=unit, runtime="r") for unit in sorted(units)),
        labels={"site": site} if site else {},
        gpus=tuple(GpuInfo(name=gpu, vram=0) for gpu in sorted(gpus)),
        device=device,
    ),
    st.one_of(st.none(), st.integers(1, 64).map(lambda gib: gib * GIB)),
    st.sets(st.sampled_from(UNITS)),
    st.sampled_from(("", "a", "b")),
    st.sets(st.sampled_from("ab")),
    st.sampled_from(("d1", "d2", "d3")),
)


@given(st.lists(clauses, max_size=4), adverts)
def test_a_device_that_fits_is_found_by_every_way_of_reading(wanted: list[Clause], device: Advert) -> None:
    requirement = Requirement(clauses=tuple(wanted))
    if match(requirement, device).fits:
        says = set(attributes_of(device))
        for way in index_alternatives(requirement):
            assert says & set(way), way
