"""The command reference matches the program's own help, and its examples are command lines that the program accepts."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest
import typer

import sark

ROOT: Final = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sark_reference", ROOT / "tools" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sark_reference"] = module
    spec.loader.exec_module(module)
    return module


def test_the_reference_says_what_the_program_says(reference: ModuleType) -> None:
    for name, made in (("cli.md", reference.markdown()), ("sark-node.1", reference.man())):
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == made, f"docs/{name}: run `make spec`"


def test_every_command_that_is_shown_has_its_chapter_and_every_example_a_command(
    reference: ModuleType,
) -> None:
    chapters = {page.name for page in reference.pages()}
    assert {"join", "gate status", "pool invite", "top", "serve", "schedule"} <= chapters
    assert set(reference.EXAMPLES) <= chapters


@pytest.mark.slow
def test_every_example_is_a_command_line_that_the_program_takes(reference: ModuleType) -> None:
    for name, examples in reference.EXAMPLES.items():
        for words, _ in examples:
            assert words.startswith(name)
            command = typer.main.get_command(sark.app)
            context = command.make_context("sark-node", shlex.split(words.partition(" < ")[0]))
            rest = [*getattr(context, "_protected_args", ()), *context.args]
            while rest and hasattr(command, "resolve_command"):
                result, command, rest = command.resolve_command(context, rest)
                context = command.make_context(result, rest, parent=context)
                rest = [*getattr(context, "_protected_args", ()), *context.args]


def test_text_cannot_be_a_request_or_an_escape_of_the_manual(reference: ModuleType) -> None:
    assert reference._roff(".so /etc/passwd") == "\\&.so /etc/passwd"
    assert reference._roff("a\\fBb --x") == "a\\efBb \\-\\-x"


def test_the_manual_is_set_without_a_complaint() -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("groff is not installed here: the manual page is not set")
    page = str(ROOT / "docs" / "sark-node.1")
    done = subprocess.run(
        [groff, "-man", "-Tutf8", "-ww", "-z", page], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
