"""FlatBuffers: what was written is read back, and no read goes outside the file."""

from __future__ import annotations

import pytest

from drivers.local.flat_read import MAX_ENTRIES, FlatTable, root
from drivers.local.flat_write import FlatWriter
from protocol.formats.model_files import FormatError


def table(*fields: tuple[int, str, int], made: FlatWriter) -> FlatTable:
    return root(made.finish(made.table(*fields), b"TEST"))


def test_what_is_written_is_read() -> None:
    made = FlatWriter()
    name = made.text("a name")
    inner = made.offsets([made.table((0, "o", name)), made.table()])
    sizes = made.numbers("i", [3, -1])
    found = table((0, "i", -7), (1, "o", inner), (2, "o", sizes), (5, "Q", 1 << 40), made=made)
    assert (found.number(0, "i"), found.number(5, "Q")) == (-7, 1 << 40)
    assert [one.text(0) for one in found.tables(1)] == ["a name", ""]
    assert found.entry(1, 0).text(0) == "a name"
    assert found.numbers(2, "i") == (3, -1)
    assert (found.number(3, "I", 9), found.table(4), found.numbers(9, "i")) == (9, None, ())


@pytest.mark.parametrize("index", [-1, 2])
def test_there_are_no_others_than_the_entries(index: int) -> None:
    made = FlatWriter()
    inner = made.offsets([made.table(), made.table()])
    with pytest.raises(FormatError, match="broken"):
        table((1, "o", inner), made=made).entry(1, index)


def test_a_vector_has_a_limit() -> None:
    made = FlatWriter()
    whole = made.buffer(bytes(MAX_ENTRIES + 1))
    found = root(made.finish(whole, b"TEST"))
    assert found.span(0)[1] == MAX_ENTRIES + 1
    with pytest.raises(FormatError, match="broken"):
        found.numbers(0, "B")


@pytest.mark.parametrize("at", [-4, 2, 100])
def test_a_table_outside_of_the_file_is_refused(at: int) -> None:
    with pytest.raises(FormatError, match="broken"):
        FlatTable(bytes(4), at).number(0, "i")
