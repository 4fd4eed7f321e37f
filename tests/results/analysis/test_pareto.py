"""The front of time against a second figure."""

from __future__ import annotations

from dataclasses import replace

from results.analysis.matrix import Axis, MatrixCell, front, fronts, pareto_front


def test_the_front_is_what_nothing_beats_in_both() -> None:
    points = [(1.0, 9.0), (2.0, 5.0), (3.0, 6.0), (4.0, 1.0), (2.0, 5.0), (5.0, 1.0)]
    assert sorted(pareto_front(points)) == [0, 1, 3, 4]


def cell(job: str, ms: float | None, joules: float | None) -> MatrixCell:
    return MatrixCell("m", "d", "u", median_ms=ms, joules=joules, job=job)


def test_the_front_holds_what_no_other_beats_in_both() -> None:
    cells = [
        cell("slow-thrifty", 9, 1),
        cell("quick-thirsty", 1, 9),
        cell("beaten", 9, 9),
        cell("as quick, thirstier", 1, 10),
        cell("middle", 5, 5),
        cell("twin of the middle", 5, 5),
        cell("no time", None, 0),
        cell("not measured", 0.1, None),
    ]
    assert front(cells, Axis.ENERGY) == ("quick-thirsty", "middle", "twin of the middle", "slow-thrifty")
    assert Axis.QUALITY not in fronts(cells)
    assert set(fronts(cells)) == {Axis.ENERGY}


def test_energies_of_several_sources_are_held_against_nothing() -> None:
    cells = [
        replace(cell("package", 1, 1), energy_source="rapl package"),
        replace(cell("plug", 2, 3), energy_source="csv wall"),
    ]
    assert front(cells, Axis.ENERGY) == ()
    assert fronts(cells) == {}
    alike = [replace(each, energy_source="csv wall") for each in cells]
    assert fronts(alike) == {Axis.ENERGY: ("package",)}


def test_of_quality_more_is_better() -> None:
    cells = [
        MatrixCell("m", "d", "u", median_ms=1, quality=0.2, job="quick"),
        MatrixCell("m", "d", "u", median_ms=2, quality=0.4, job="good"),
        MatrixCell("m", "d", "u", median_ms=3, quality=0.3, job="neither"),
    ]
    assert front(cells, Axis.QUALITY) == ("quick", "good")
