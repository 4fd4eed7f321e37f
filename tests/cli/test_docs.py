"""What people copy from the guides is right: each command line and option is one that the program accepts, each extra is one that pip
knows, each link leads somewhere. Nothing is run."""

from __future__ import annotations

import functools
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer

import sark

ROOT: Final = Path(__file__).parents[2]
# docs/cli.md is generated from the program, which test_reference.py checks
PAGES: Final = (
    "README.md",
    *sorted(
        path.relative_to(ROOT).as_posix()
        for pages in ((ROOT / "docs").glob("*.md"), (ROOT / "docs" / "how-to").glob("*.md"))
        for path in pages
        if path.name != "cli.md"
    ),
    "drivers/README.md",
    "examples/README.md",
)
OTHERS: Final = ("examples/gate/compose.yaml", "examples/gate/config.toml", "examples/gate/sark-gate.service")
SHELL: Final = {"<", ">", "|", "||", "&&", ";", "&"}
FOREIGN: Final = {"--with", "--link-mode", "--enable-auto-tool-choice"}
"""Options of other programs that a page names on their own."""


def parts(text: str) -> Iterator[tuple[int, str, bool]]:
    """The pieces of code on a page: line number, text, and whether it is in a fenced block. Joins continued lines."""
    prose, fenced, before = [], False, ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = line.lstrip().startswith("```")
        fenced ^= mark
        prose.append("" if fenced or mark else line)
        if fenced and not mark:
            before += line.removesuffix("\\")
            if not line.endswith("\\"):
                yield number, before, True
                before = ""
    whole = "\n".join(prose)
    for span in re.finditer(r"`([^`]+)`", whole):
        yield whole.count("\n", 0, span.start()) + 1, " ".join(span[1].split()), False


def words_of(line: str) -> list[str] | None:
    """The words after `sark-node` on a command line, up to a comment or a shell operator, or None without `sark-node`. In a usage line,
    `[--live | --json]` gives both options."""
    match = re.search(r"(?<!-u )(?<![\w-])sark-node(?:\s+(.*))?$", line)
    if match is None:
        return None
    usage = re.sub(r"\[([^\]]*)\]", lambda inner: inner[1].replace("|", " "), match[1] or "")
    try:
        words = shlex.split(usage, comments=True)
    except ValueError:  # prose with an apostrophe
        return None
    end = next((place for place, word in enumerate(words) if word in SHELL), len(words))
    return words[:end]


@functools.cache
def program() -> Any:
    command: Any = typer.main.get_command(sark.app)
    command.list_commands(typer.Context(command))  # imports all commands
    return command


def takes(words: list[str]) -> None:
    """Check that the program accepts this command line. Raises the program's own error if not."""
    command = program()
    context = command.make_context("sark-node", list(words))
    while hasattr(command, "resolve_command"):
        rest = [*getattr(context, "_protected_args", ()), *context.args]
        if not rest:
            return
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


def options(command: Any) -> Iterator[str]:
    """All options of a command and its subcommands."""
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    for inner in getattr(command, "commands", {}).values():
        yield from options(inner)
    yield from ("--help", "-h")


def lines(page: str) -> Iterator[tuple[int, list[str], bool]]:
    """The command lines of a page, and whether they are complete. A line in backticks may start with a command's name, such as
    `join --owner`, and omit required arguments."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if page in OTHERS:
        for number, line in enumerate(text.splitlines(), 1):
            if "/sark-node " in line and (words := words_of(line)) is not None:
                yield number, words, True
        return
    known = set(program().commands)
    for number, code, fenced in parts(text):
        words = words_of(code)
        if words is None and not fenced and code.split()[0] in known and " --" in code:
            words = words_of(f"sark-node {code}")
        if words:
            yield number, words, fenced


@pytest.mark.parametrize("page", [*PAGES, *OTHERS])
def test_each_command_line_of_a_page_is_one_that_the_program_takes(page: str) -> None:
    wrong = []
    for number, words, whole in lines(page):
        try:
            takes(words)
        except (typer.Exit, SystemExit):  # an option such as --version, which prints and exits
            continue
        except typer.TyperException as error:
            if not whole and re.search(r"Missing parameter|requires an argument", str(error)):
                continue
            wrong.append(f"{page}:{number}: sark-node {' '.join(words)}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES)
def test_each_option_that_a_page_names_by_itself_is_one_of_ours(page: str) -> None:
    known = set(options(program())) | FOREIGN
    text = (ROOT / page).read_text(encoding="utf-8")
    named = [
        (number, code.split()[0]) for number, code, fenced in parts(text) if not fenced and code[:2] == "--"
    ]
    assert [f"{page}:{number}: {word}" for number, word in named if word.split("=")[0] not in known] == []


@pytest.mark.parametrize("page", PAGES)
def test_each_extra_that_a_page_names_is_one_that_pip_knows(page: str) -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"""(?:sark-node|[ '"]\.)\[([a-z,]+)\]""", text)
    assert {extra for each in named for extra in each.split(",")} <= set(known)


@pytest.mark.parametrize("page", PAGES)
def test_each_link_of_a_page_leads_to_a_file_and_a_heading_that_are_there(page: str) -> None:
    here = ROOT / page
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", here.read_text(encoding="utf-8")):
        if target.startswith(("https://", "http://")):
            continue
        where, _, heading = target.partition("#")
        there = here.parent / where if where else here
        if not there.exists() or (heading and heading not in headings(there)):
            wrong.append(target)
    assert wrong == []


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as browsers see them."""
    result = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in result}


def test_a_command_that_is_gone_and_an_option_that_is_gone_are_seen() -> None:
    assert words_of("~/sark/bin/sark-node join --install -   # paste it, it's done") == [
        "join",
        "--install",
        "-",
    ]
    assert words_of("sark-node join - < ticket.txt") == ["join", "-"]
    assert words_of("sark-node gate status [--live | --json]") == ["gate", "status", "--live", "--json"]
    assert words_of("pip install sark-nodes") is None
    takes(["gate", "status", "--live"])
    for gone in (["gates"], ["gate", "state"], ["join", "--instal"], ["--hom", "x", "join"]):
        with pytest.raises(typer.TyperException, match="No such"):
            takes(gone)
