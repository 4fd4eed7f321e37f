"""The strict reader: its result for good text, and one clear line for everything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import CampaignError
from swarm.base.yaml import MAX_BYTES, MAX_DEPTH, MAX_VALUES, Document, parse_document, read_document


def outcome(data: bytes, file: str = "c.yaml") -> Document | CampaignError:
    """The document or the error; any other exception fails the test."""
    try:
        return parse_document(data, file)
    except CampaignError as exc:
        return exc


def refused(data: bytes, file: str = "c.yaml") -> CampaignError:
    with pytest.raises(CampaignError) as caught:
        parse_document(data, file)
    assert caught.value.hint, "every refusal says what to do"
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("12", 12),
        ("-3", -3),
        ("0", 0),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("no", "no"),
        ("on", "on"),
        ("Yes", "Yes"),
        ("010", "010"),
        ("0x1F", "0x1F"),
        ("0o17", "0o17"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        (".inf", ".inf"),
        ("nan", "nan"),
        ("1e999", "1e999"),
        ("9" * 40, "9" * 40),
        ("'12'", "12"),
        ('"true"', "true"),
        ("CPU (ONNX)", "CPU (ONNX)"),
    ],
)
def test_a_word_without_quotes_means_only_what_it_looks_like(word: str, value: object) -> None:
    result = parse_document(f"key: {word}\n".encode(), "c.yaml").value["key"]
    assert (type(result), result) == (type(value), value)


def test_every_entry_and_item_has_its_line() -> None:
    document = parse_document(b"# hello\na: 1\nb:\n  - x\n  - y: 2\n    z: [3,\n      4]\n", "c.yaml")
    assert document.value == {"a": 1, "b": ["x", {"y": 2, "z": [3, 4]}]}
    assert [
        document.line(where) for where in [("a",), ("b",), ("b", 0), ("b", 1, "z"), ("b", 1, "z", 1)]
    ] == [
        2,
        3,
        4,
        6,
        7,
    ]


def test_the_value_of_an_empty_document_has_the_last_line() -> None:
    assert parse_document(b"---", "c.yaml").lines == {(): 1}


def test_what_is_not_in_the_file_has_the_line_of_what_is_around_it() -> None:
    document = parse_document(b"a: 1\nb:\n  c: 2\n", "c.yaml")
    assert document.line(("b", "nowhere", 3)) == 2
    assert document.line(("nowhere",)) == 1


def test_json_is_read_with_its_lines_whatever_it_is_indented_with() -> None:
    text = b'{\n\t"a": [1,\n\t\t{"b": "\\ud83d\\ude00", "c": null}],\n\t"d": -1.5e2\n}'
    document = parse_document(text, "c.json")
    assert document.value == {"a": [1, {"b": "😀", "c": None}], "d": -150.0}
    assert document.line(("a", 1, "c")) == 3
    assert document.line(("d",)) == 4


def test_a_flow_mapping_that_is_no_json_is_still_yaml() -> None:
    assert parse_document(b"{a: 1, b: [x, y]}", "c.yaml").value == {"a": 1, "b": ["x", "y"]}


@pytest.mark.parametrize(
    ("data", "line", "what"),
    [
        (b"a: &x 1\n", 1, "anchor &x"),
        (b"a: 1\nb: *x\n", 2, "alias *x"),
        (b"a: 1\nb: !!python/object/apply:os.system [ls]\n", 2, "tag"),
        (b"a: !thing x\n", 1, "tag !thing"),
        (b"a: 1\n<<: {b: 2}\n", 2, "merge key"),
        (b"a: 1\nb: 2\na: 3\n", 3, "duplicate key 'a', first on line 1"),
        (b"a: {x: 1,\n  x: 2}\n", 2, "duplicate key 'x'"),
        (b'{"a": 1,\n "a": 2}', 2, "duplicate key 'a', first on line 1"),
        (b"a: 1\n---\nb: 2\n", 2, "second document"),
        (b"? [a, b]\n: c\n", 1, "a key must be one word"),
        (b"a:\n\t- b\n", 2, "not valid YAML"),
        (b"a: b: c\n", 1, "not valid YAML"),
        (b"a: 'x\nb: 2\n", 3, "not valid YAML"),
        (b"a: [1, 2\nb: 3\n", 2, "not valid YAML"),
        (b"a: 1\nb: \x00\n", 2, "unreadable character U+0000"),
        (b"a: \x1b[31m\n", 1, "unreadable character U+001B"),
        (b"a: 1\nb: \xff\xfe\n", 2, "not a text file"),
        ("a: 1".encode("utf-16"), 1, "UTF-16"),
    ],
)
def test_what_is_refused_is_named_with_its_line(data: bytes, line: int, what: str) -> None:
    error = refused(data)
    assert (error.file, error.line) == ("c.yaml", line)
    assert what in str(error)


def test_broken_json_is_named_with_its_line() -> None:
    error = refused(b'{"a": 1,\n "b": }', "c.json")
    assert error.line == 2
    assert "not valid JSON" in str(error)


def test_tabs_have_their_own_hint() -> None:
    assert "spaces, not with tabs" in refused(b"a:\n\t- b\n").hint


@pytest.mark.parametrize(
    "data",
    [
        b"x" * 1_000_000,
        bytes(range(256)) * 4000,
        b"\x00" * 1_000_000,
        b"- a\n" * 250_000,
        b"[" * 1_000_000,
    ],
)
def test_a_megabyte_of_junk_is_refused_by_its_size_alone(data: bytes) -> None:
    assert f"larger than {MAX_BYTES // 1024} KiB" in str(refused(data))


@pytest.mark.parametrize("bracket", ["[", "{a: ", "- "])
def test_depth_is_bounded(bracket: str) -> None:
    error = refused((bracket * (MAX_BYTES // len(bracket) - 8)).encode())
    assert f"nested deeper than {MAX_DEPTH}" in str(error)


def test_depth_of_json_is_bounded() -> None:
    text = "[" * 200 + "]" * 200
    assert f"nested deeper than {MAX_DEPTH}" in str(refused(text.encode(), "c.json"))


def test_the_number_of_values_is_bounded() -> None:
    error = refused(b"[" + b"1," * (MAX_VALUES + 10) + b"1]")
    assert f"more than {MAX_VALUES:,} values" in str(error)


def test_a_bomb_of_aliases_is_refused_at_its_first_anchor() -> None:
    bomb = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
        b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 9)) for i in range(9)
    )
    error = refused(bomb)
    assert error.line == 1
    assert "anchor" in str(error)


def test_a_missing_file_a_folder_and_an_impossible_name_are_errors(tmp_path: Path) -> None:
    for path, what in [
        (tmp_path / "none.yaml", "no such file"),
        (tmp_path, "is a folder"),
        (tmp_path / ("x" * 5000), "cannot be read"),
        (tmp_path / "a\0b", "no such file|cannot be read"),
    ]:
        with pytest.raises(CampaignError, match=what):
            read_document(path)


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused_by_campaign_error(data: bytes) -> None:
    for file in ("c.yaml", "c.json"):
        result = outcome(data, file)
        assert isinstance(result, Document) or 1 <= (result.line or 0) <= data.count(b"\n") + 1


@given(st.text(alphabet="ab:-[]{},&*!|>'\"%@`#? \n\t<=01.~\\", max_size=120))
def test_any_yaml_like_text_is_read_or_refused_by_campaign_error(text: str) -> None:
    result = outcome(text.encode())
    lines = result.lines.values() if isinstance(result, Document) else [result.line or 0]
    assert all(1 <= line <= text.count("\n") + 1 for line in lines)


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**15), 10**15)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(min_size=1, max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(_JSON, st.sampled_from([None, 2, "\t"]))
def test_json_of_any_shape_is_read_as_the_json_module_reads_it(
    value: object, indent: int | str | None
) -> None:
    text = json.dumps(value, indent=indent)
    result = outcome(text.encode(), "c.json")
    if isinstance(result, Document):
        assert result.value == value
    else:
        assert "merge key" in str(result) or "unreadable" in str(result), "only these are refused on purpose"
