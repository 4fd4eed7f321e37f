"""The columns by which results are listed."""

from __future__ import annotations

import pytest

from results.export.figures import unconfirmed


@pytest.mark.parametrize(
    ("verdict", "listed"),
    [
        ("valid", "unchecked"),
        ("noisy", "unchecked"),
        ("unwitnessed", "unwitnessed"),
        ("simulated", "simulated"),
        ("", ""),
    ],
)
def test_a_stranger_of_which_no_inference_was_confirmed_is_listed_as_unchecked_at_best(
    verdict: str, listed: str
) -> None:
    assert unconfirmed({"verdict": verdict, "device": "d"}) == {"verdict": listed, "device": "d"}
