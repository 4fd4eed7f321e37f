"""The chain of a witnessed run, by its test vectors, which SPEC.md lists too."""

from __future__ import annotations

from protocol.formats.chain import NO_DIGEST, SUMS, launch_digest, launch_seed

OPENING, REVEAL = bytes(range(32)), bytes(range(32, 64))
SKETCH = ("float32", 10, 2.5, bytes.fromhex("3f000000" * SUMS))


def test_seeds_and_digests_are_those_of_the_specification() -> None:
    first = launch_digest("ab" * 32, [SKETCH])
    assert launch_seed(OPENING, 1) == 5394070287213597
    assert first.hex() == "6fff5383baf633d5c44eb03f712ece70078bf816a9567054f56f50e6dd613620"
    assert launch_seed(REVEAL, 2, first) == 7681361671414227
    assert (
        launch_digest("ab" * 32, []).hex()
        == "a99d0536597d126aa1c94e4d6a973646e8373176df7a0abf830be4e69feb0264"
    )


def test_a_seed_follows_from_each_of_its_parts() -> None:
    digest = bytes([1]) * 32
    seeds = {
        launch_seed(OPENING, 2, digest),
        launch_seed(REVEAL, 2, digest),
        launch_seed(REVEAL, 3, digest),
        launch_seed(REVEAL, 2, NO_DIGEST),
    }
    assert len(seeds) == 4
    assert all(seed < 2**53 for seed in seeds)


def test_a_digest_follows_from_each_part_of_a_sketch() -> None:
    dtype, count, norm, sums = SKETCH
    changed = [
        ("float16", count, norm, sums),
        (dtype, count + 1, norm, sums),
        (dtype, count, norm + 1e-9, sums),
        (dtype, count, norm, sums[::-1]),
    ]
    digests = {launch_digest("ab" * 32, [sketch]) for sketch in (SKETCH, *changed)}
    assert len(digests) == 5
