"""Tables with rows of strangers say so at their top."""

from __future__ import annotations

import io

from rich.console import Console

from scheduler.output.results_table import show_results
from tests.results.row.test_strangers import row


def test_a_table_says_it_at_its_top() -> None:
    console = Console(file=io.StringIO(), width=100)
    show_results([row("own"), row("stranger")], console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.startswith("1 of 2 rows is from strangers")
    assert "Trust" in text
    assert "stranger" in text
