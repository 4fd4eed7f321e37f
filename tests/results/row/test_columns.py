"""Every column is explained, and the page agrees with the code."""

from __future__ import annotations

from pathlib import Path

import scheduler
from results.row.row import column_meanings, columns_page

PAGE = Path(next(iter(scheduler.__path__))).parent / "docs" / "columns.md"


def test_every_column_is_explained() -> None:
    assert [name for name, meaning in column_meanings().items() if not meaning] == []


def test_the_page_of_columns_is_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == columns_page(), "run `make spec` and read the difference"
