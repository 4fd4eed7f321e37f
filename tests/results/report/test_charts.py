"""Charts: SVG is valid XML with a text alternative, PNG is reproducible, no sample is lost, and no name can do harm."""

from __future__ import annotations

import base64
import io
import math
import sys
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import image

from protocol.errors import CampaignError, ResourceError
from protocol.values.record import Record, StageTime, pack_samples, read_record
from results.analysis.matrix import Axis
from results.analysis.pairs import pair_up
from results.export.raw import RawResult, ResultEntry
from results.report.charts import MAX_DOTS, ChartKind, Sheet, bars, names_of, pareto, ratios, strips
from results.report.drawing import (
    DARK,
    Box,
    Dots,
    Drawing,
    Stroke,
    TextLabel,
    Theme,
    Tone,
    Wedge,
    digits,
    fit_text,
    scale_over,
    svg,
)
from results.report.task_charts import (
    TaskChart,
    distribution_chart,
    histogram_chart,
    host_chart,
    task_chart,
    trace_chart,
)
from results.row.record import observe
from scheduler.output.render import SIZES, chart, picture
from tests.scheduler.report_parts import complete, failed, launches_at, unplaced

NS = "{http://www.w3.org/2000/svg}"
HOSTILE = '"><script>alert(1)</script>\u202egnp.exe\u009b31m $\\frac{1}{0}$ & \x00]]>'
SLIDE = Sheet(1280, 720, 20)
THEMES: tuple[Theme, ...] = ("page", "light", "dark")


def entries(*results: RawResult) -> list[ResultEntry]:
    return [result.entry() for result in results]


def parsed(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314  of our own making


def marks_of(drawing: Drawing | None, kind: type) -> list[Any]:
    assert drawing is not None
    return [mark for mark in drawing.marks if isinstance(mark, kind)]


def texts(drawing: Drawing | None) -> list[str]:
    return [mark.text for mark in marks_of(drawing, TextLabel)]


# -- drawing -----------------------------------------------------------------------------------------------------------------------


def test_every_picture_is_xml_and_says_in_words_what_it_shows() -> None:
    result = complete(1)
    row, launches = result.row, result.launches
    two = entries(result, complete(2, device=1, ms=20))
    drawings = [
        distribution_chart(launches, row),
        trace_chart(launches, result.warmup_launches),
        bars([entry.row for entry in two]),
        strips(two, SLIDE, title="t"),
        pareto([entry.row for entry in two]),
        ratios([("b", pair) for pair in pair_up(two[:1], two[1:])]),
        *(
            task_chart(kind, record_with_blocks(), row)
            for kind in TaskChart
            if kind is not TaskChart.SUSTAINED
        ),
    ]
    for drawing in drawings:
        assert drawing is not None
        for theme in THEMES:
            root = parsed(svg(drawing, theme, name="n"))
            assert root.tag == f"{NS}svg"
            assert root.get("role") == "img"
            title, outcome = root.find(f"{NS}title"), root.find(f"{NS}desc")
            assert title is not None
            assert outcome is not None
            assert root.get("aria-labelledby") == f"{title.get('id')} {outcome.get('id')}"
            assert outcome.text
            assert any(char.isdigit() for char in outcome.text)


def test_in_a_page_marks_have_classes_and_no_colours_alone_they_have_colours_and_no_style() -> None:
    drawing = Drawing(10, 10, "t", "d", [Box(0, 0, 1, 1), Stroke([(0, 0), (1, 1)], Tone.BAD)])
    assert 'class="f-first"' in svg(drawing)
    assert "#" not in svg(drawing)
    alone = svg(drawing, "dark")
    assert DARK[Tone.BAD] in alone
    assert DARK[Tone.PAPER] in alone
    assert "class=" not in alone
    assert "style" not in alone + svg(drawing)


@pytest.mark.parametrize("theme", THEMES)
def test_hostile_names_stay_words_in_svg(theme: Theme) -> None:
    result = complete(1)
    row = result.row.model_copy(update={"file_name": HOSTILE, "device_name": HOSTILE, "verdict": HOSTILE})
    other = complete(2, device=1).row
    for drawing in (
        bars([row, other]),
        pareto([row, other]),
        strips([ResultEntry(row, result.launches)], SLIDE, title=HOSTILE),
    ):
        assert drawing is not None
        text = svg(drawing, theme)
        root = parsed(text)
        assert {element.tag.removeprefix(NS) for element in root.iter()} <= {
            "svg",
            "title",
            "desc",
            "rect",
            "path",
            "text",
        }
        assert not [name for element in root.iter() for name in element.attrib if name.startswith("on")]
        assert not any(char in text for char in "\u202e\u009b\x00")


def test_a_png_is_the_same_each_time_twice_as_sharp_and_takes_no_name_for_a_formula() -> None:
    drawing = chart(
        [complete(1), complete(2, device=1)], ChartKind.BARS, "16:9", f"$\\frac{{1}}$ {HOSTILE} 模型"
    )
    data = picture(drawing, ".png")
    assert data == picture(drawing, ".png")
    pixels = image.imread(io.BytesIO(data))
    assert pixels.shape[:2] == (1440, 1280 * 2)
    assert pixels.min() < 0.3  # ink
    assert pixels[0, 0, 0] == 1.0  # on white paper
    assert image.imread(io.BytesIO(picture(drawing, ".png", dark=True)))[0, 0, 0] < 0.1


def test_without_matplotlib_one_line_says_what_to_install_and_svg_needs_it_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    drawing = chart([complete(1)], ChartKind.BARS, "1:1", "t")
    with pytest.raises(ResourceError, match="PNG needs the package matplotlib") as raised:
        picture(drawing, ".png")
    assert "sark-node[report]" in raised.value.hint
    assert picture(drawing, ".svg") == picture(drawing, ".svg")


@given(st.floats(1e-9, 1e12), st.floats(1.0, 1e9), st.booleans())
def test_a_scale_holds_its_values_and_its_ticks_are_within_it(low: float, times: float, zero: bool) -> None:
    scale = scale_over([low, low * times], 10, 200, zero=zero)
    for value in (low, low * times, 0.0, low * times * 10):
        assert 10 - 1e-6 <= scale.at(value) <= 200 + 1e-6
    ticks = scale.ticks(5)
    assert len(ticks) <= 12
    assert all(scale.low - 1e-9 <= tick <= scale.high * (1 + 1e-9) for tick in ticks)
    assert ticks == sorted(set(ticks))


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_digits_never_have_an_exponent(value: float) -> None:
    outcome = digits(value)
    assert "e" not in outcome
    assert math.isfinite(value) or outcome == "–"


@given(st.text(max_size=80), st.floats(5, 400))
def test_a_text_that_is_too_long_is_cut_and_says_so(text: str, room: float) -> None:
    outcome = fit_text(text, 12, room)
    assert outcome.endswith("…") or len(outcome) <= len(text)


# -- one task ----------------------------------------------------------------------------------------------------------------------


def test_each_sample_is_a_dot_in_the_row_of_its_launch() -> None:
    result = complete(1)
    drawing = distribution_chart(result.launches, result.row)
    spots = marks_of(drawing, Dots)
    assert [len(mark.points) for mark in spots] == [17] * 6
    rows = [sum(y for _, y in mark.points) / 17 for mark in spots]
    assert rows == sorted(rows)
    assert drawing is not None
    assert "102 samples in 6 launches" in drawing.description
    assert digits(result.row.inference_ms_median or 0) in drawing.description
    assert "95 % interval" in drawing.description


def test_outliers_are_drawn_at_the_edge_and_counted() -> None:
    launches = [list(launch) for launch in launches_at(10.0)]
    launches[2][5] = launches[4][1] = 900_000_000
    result = complete(1, launches=launches)
    drawing = distribution_chart(launches, result.row)
    assert len(marks_of(drawing, Wedge)) == 2
    assert sum(len(mark.points) for mark in marks_of(drawing, Dots)) == 100
    assert drawing is not None
    assert "2 lie beyond the right edge" in drawing.description
    assert "900" in drawing.description
    assert not marks_of(distribution_chart(launches_at(10.0), complete(1).row), Wedge)
    line = trace_chart(launches, result.warmup_launches)
    assert line is not None
    assert "3 lie beyond the upper edge" in line.description


def test_a_trace_has_warm_up_and_timed_inferences_of_each_launch_in_order() -> None:
    result = complete(1)
    drawing = trace_chart(result.launches, result.warmup_launches)
    warm = [mark for mark in marks_of(drawing, Stroke) if mark.tone is Tone.SECOND]
    timed = [mark for mark in marks_of(drawing, Stroke) if mark.tone is Tone.FIRST]
    assert [len(mark.points) for mark in timed] == [17] * 6
    assert [len(mark.points) for mark in warm] == [6] * 6  # five, then a line to the first timed sample
    for before, after in zip(warm, timed, strict=True):
        assert [x for x, _ in before.points] == sorted(x for x, _ in before.points)
        assert before.points[-1] == after.points[0]
    assert drawing is not None
    assert "30 warm-up and 102 timed" in drawing.description
    assert {"warm-up", "timed"} <= set(texts(drawing))


def test_of_very_many_samples_so_many_are_drawn_and_the_extremes_among_them() -> None:
    launches = [[10_000_000 + n for n in range(50_000)] for _ in range(2)]
    result = complete(1, launches=launches)
    drawing = distribution_chart(launches, result.row)
    spots = marks_of(drawing, Dots)
    assert [len(mark.points) for mark in spots] == [MAX_DOTS] * 2
    assert drawing is not None
    assert f"{MAX_DOTS} samples at even ranks" in drawing.description
    assert len(svg(drawing)) < 30_000
    line = trace_chart(launches, [])
    assert line is not None
    assert len(svg(line)) < 30_000


@pytest.mark.parametrize(
    "samples", [[[0]], [[5, 5], [5]], [[1], [2**62]], [[7] * 40]], ids=["zero", "same", "huge", "alike"]
)
def test_odd_samples_are_drawn_all_the_same(samples: list[list[int]]) -> None:
    row = complete(1).row
    for drawing in (
        distribution_chart(samples, row),
        trace_chart(samples, []),
        strips([ResultEntry(row, tuple(map(tuple, samples)))]),
    ):
        assert drawing is not None
        text = svg(drawing)
        parsed(text)
        assert "nan" not in text
        assert "inf" not in text.replace("inference", "")


def record_with_blocks() -> Record:
    """A measurement of device 0 whose host reported its state: two blocks for each launch."""
    record = read_record(base64.b64decode(complete(1).record))
    block = [
        8,
        10**9,
        2 * 10**9,
        1 + 10**8,
        1 + 3,
    ]  # samples, wall, CPU, stall and switches, the last two plus one
    blocks = pack_samples([*block, *block])
    timings = tuple(
        timing.model_copy(update={"blocks": blocks, "began_s": 10.0 * at})
        for at, timing in enumerate(record.timings)
    )
    return record.model_copy(update={"timings": timings})


def test_a_histogram_has_every_sample_in_a_bar_that_says_what_it_holds() -> None:
    result = complete(1)
    samples = [ns for launch in result.launches for ns in launch]
    drawing = histogram_chart(samples, result.row)
    bars = [mark for mark in marks_of(drawing, Box) if mark.tone is Tone.FIRST]
    assert sum(int(mark.hint.split(": ")[1].split()[0]) for mark in bars) == 102
    assert drawing is not None
    assert "102 samples" in drawing.description
    assert "<title>" in svg(drawing)
    assert histogram_chart([]) is None
    for odd in ([0], [7] * 40, [1, 2**62]):
        one = histogram_chart(odd)
        assert one is not None
        assert "nan" not in svg(one)


def test_the_host_is_drawn_block_by_block_and_not_where_its_system_reported_nothing() -> None:
    record = record_with_blocks()
    drawing = host_chart(observe(record), [timing.began_s for timing in record.timings])
    boxes = marks_of(drawing, Box)
    assert len(boxes) == 3 * 12  # stall, processor time and switches
    assert boxes[0].hint == "launch 1, at 0 s, for 1.000 s: 10.00 %"
    assert boxes[2].hint.startswith("launch 2, at 10.00 s")
    silent = read_record(base64.b64decode(complete(1).record))
    assert task_chart(TaskChart.HOST, silent) is None


def test_stages_follow_each_other_on_one_line() -> None:
    record = record_with_blocks()
    stages = tuple(StageTime(stage=name, seconds=seconds) for name, seconds in (("fetch", 1.0), ("run", 3.0)))
    fetch, run = marks_of(task_chart(TaskChart.STAGES, record.model_copy(update={"stages": stages})), Box)
    assert run.x == pytest.approx(fetch.x + fetch.width)
    assert run.width == pytest.approx(3 * fetch.width)
    assert task_chart(TaskChart.STAGES, record.model_copy(update={"stages": ()})) is None


# -- several tasks -----------------------------------------------------------------------------------------------------------------


def test_bars_begin_at_zero_are_as_long_as_their_medians_and_carry_their_interval() -> None:
    rows = [complete(1, ms=10).row, complete(2, device=1, ms=20).row, failed(3).row]
    drawing = bars(rows)
    first, second = [mark for mark in marks_of(drawing, Box) if mark.tone is Tone.FIRST]
    assert second.width / first.width == pytest.approx(
        (rows[1].inference_ms_median or 0) / (rows[0].inference_ms_median or 1), rel=0.01
    )
    ends = [mark for mark in marks_of(drawing, Stroke) if mark.tone is Tone.INK]
    assert len(ends) == 6  # two end marks and a line between them, for each
    assert any(text.startswith(digits(rows[0].inference_ms_median or 0)) for text in texts(drawing))


def test_over_a_wide_range_points_on_a_logarithmic_axis_take_the_place_of_bars() -> None:
    drawing = bars([complete(1, ms=0.5).row, complete(2, device=1, ms=200).row])
    assert not [mark for mark in marks_of(drawing, Box) if mark.tone is Tone.FIRST]
    assert len(marks_of(drawing, Dots)) == 2
    assert any("logarithmic" in text for text in texts(drawing))


def test_what_is_not_valid_says_so_beside_its_bar() -> None:
    row = complete(1).row.model_copy(update={"verdict": "busy-host"})
    assert any("busy-host" in text for text in texts(bars([row])))
    assert not any("valid" in text for text in texts(bars([complete(1).row])))


def test_a_slide_names_what_it_has_no_room_for() -> None:
    rows = [complete(1).row.model_copy(update={"job_id": f"c-1/{n}", "threads": n}) for n in range(1, 61)]
    lines = [text for text in texts(bars(rows, SLIDE, title="t")) if "that do not fit" in text]
    assert len(lines) == 1
    drawn = len([mark for mark in marks_of(bars(rows, SLIDE), Box) if mark.tone is Tone.FIRST])
    assert lines[0].startswith(f"and {60 - drawn} more")


def test_rows_are_called_by_what_tells_them_apart() -> None:
    one, two = complete(1).row, complete(2, device=1).row
    assert names_of([one, two]) == ["net.onnx · lab-0", "net.onnx · lab-1"]
    assert names_of([one, two], model=False) == ["lab-0", "lab-1"]
    assert names_of([one], model=False) == ["lab-0"]
    assert names_of([one, one.model_copy(update={"threads": 1})])[1] == "net.onnx · 1 thread"
    again = one.model_copy(update={"job_id": "c-ab23cd45/9"})
    assert names_of([one, again]) == ["net.onnx · task 1", "net.onnx · task 9"]


def test_a_pareto_picture_takes_energy_where_it_was_measured_and_memory_else() -> None:
    measured = [complete(1, energy_j=0.5).row, complete(2, device=1, energy_j=0.2, ms=20).row]
    assert any("energy" in text for text in texts(pareto(measured)))
    assert any("memory" in text for text in texts(pareto([complete(1).row, complete(2, device=1).row])))
    assert any("load" in text for text in texts(pareto(measured, axis=Axis.LOAD)))
    mixed = [each.model_copy(update={"energy_source": f"meter {n}"}) for n, each in enumerate(measured)]
    assert any("memory" in text for text in texts(pareto(mixed)))
    assert pareto(mixed, axis=Axis.ENERGY) is None
    drawing = pareto([*measured, complete(3, device=2, energy_j=0.9, ms=30).row])
    green = [mark for mark in marks_of(drawing, Dots) if mark.tone is Tone.GOOD]
    assert len(green) == 2
    assert pareto([complete(1, energy_j=0.5).row], axis=Axis.ENERGY) is None


def test_ratios_show_the_interval_and_the_word() -> None:
    a, b = entries(complete(1, ms=10), complete(2, device=0, ms=20))
    drawing = ratios([("twice", pair) for pair in pair_up([a], [b])])
    assert any(text.endswith("SLOWER") for text in texts(drawing))
    assert len([mark for mark in marks_of(drawing, Stroke) if mark.tone is Tone.BAD]) == 3
    assert drawing is not None
    assert "twice: SLOWER, ratio 1.99" in drawing.description
    assert ratios([]) is None


def test_where_there_is_nothing_to_draw_a_line_says_so() -> None:
    for kind in ChartKind:
        with pytest.raises(CampaignError, match="nothing to draw"):
            chart([failed(1), unplaced(2)], kind, "16:9", "t")
    with pytest.raises(CampaignError, match=r"\.svg or \.png"):
        picture(chart([complete(1)], ChartKind.BARS, "16:9", "t"), ".gif")


@pytest.mark.parametrize("size", sorted(SIZES))
@pytest.mark.parametrize("kind", list(ChartKind))
def test_a_slide_keeps_its_marks_within_its_size(kind: ChartKind, size: str) -> None:
    results = [
        complete(n, device=n % 3, model=f"model-{n % 2}-{'x' * 60}.onnx", ms=5 + n) for n in range(1, 13)
    ]
    drawing = chart(results, kind, size, "A title that is far too long for a slide " * 5)
    assert (drawing.width, drawing.height) == SIZES[size]
    places = [
        *((mark.x, mark.y) for mark in marks_of(drawing, TextLabel)),
        *(point for mark in marks_of(drawing, Dots) for point in mark.points),
        *((mark.x + mark.width, mark.y + mark.height) for mark in marks_of(drawing, Box)),
    ]
    assert all(0 <= x <= drawing.width and 0 <= y <= drawing.height for x, y in places)
