"""House rules that no linter checks: each class name means one thing, references lead somewhere, replaced words stay away."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = ("protocol", "results", "swarm", "drivers", "node", "scheduler", "gate", "web")

GONE: Final = (
    *(
        "deed",
        "deeds",
        "lookout",
        "vouched",
        "vouch",
        "vouches",
        "told",
        "lacking",
        "presenting",
        "leavings",
        "porter",
    ),
    *("estate", "believing", "patience", "taken back", "second ticket", "first system"),
)
"""Home-made words that a standard term replaced; `protocol/GLOSSARY.md` has the terms."""
HISTORY: Final = {"CHANGELOG.md"}


@cache
def product() -> dict[Path, ast.Module]:
    """The syntax tree of every module of the product."""
    paths = [
        ROOT / "sark.py",
        *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))),
    ]
    return {path: ast.parse(path.read_text("utf-8")) for path in paths}


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def members(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """The names that these statements define, with their statements."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        yield name.id, node
        elif isinstance(node, ast.If | ast.Try):
            yield from members(node.body)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield (alias.asname or alias.name).split(".")[0], node


def attributes(definition: ast.ClassDef) -> set[str]:
    """The attributes of a class: those of its body, and those its methods set on `self`."""
    own = {name for name, _ in members(definition.body)}
    assigned = {
        node.attr
        for node in ast.walk(definition)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    return own | assigned


@cache
def modules() -> dict[str, ast.Module]:
    return {dotted(path): tree for path, tree in product().items()}


def leads_somewhere(reference: str) -> bool:
    """Whether a dotted name of the product is a module, or something defined in a module."""
    parts = reference.split(".")
    for length in range(len(parts), 0, -1):
        tree = modules().get(".".join(parts[:length]))
        if tree is None:
            continue
        rest = parts[length:]
        if not rest:
            return True
        definitions = dict(members(tree.body))
        definition = definitions.get(rest[0])
        if definition is None:
            return False
        return len(rest) == 1 or not isinstance(definition, ast.ClassDef) or rest[1] in attributes(definition)
    return False


def test_a_class_name_means_one_thing() -> None:
    places = defaultdict(set)
    for path, tree in product().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(dotted(path))
    assert {name: sorted(modules) for name, modules in places.items() if len(modules) > 1} == {}


def test_names_in_docstrings_exist() -> None:
    files_of_a_home = r"\.(?:key|log|toml|db)`"
    pattern = re.compile(rf"`((?:{'|'.join(FOLDERS)})(?!{files_of_a_home})(?:\.\w+)+)`")
    files = [
        *product(),
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "docs").glob("*.md"),
        *ROOT.glob("*/*.md"),
        *ROOT.glob("*.md"),
    ]
    wrong = [
        f"{path.relative_to(ROOT)}: {reference}"
        for path in files
        if path.name not in HISTORY
        for reference in pattern.findall(path.read_text("utf-8"))
        if not leads_somewhere(reference) and not (ROOT / reference).exists()
    ]
    assert wrong == []


def test_words_that_were_replaced_do_not_come_back() -> None:
    pattern = re.compile(rf"(?<![a-zA-Z])(?:{'|'.join(GONE)})(?![a-zA-Z])", re.IGNORECASE)
    suffixes = {".py", ".js", ".css", ".html", ".md", ".toml", ".yaml", ".json"}
    places = [*(ROOT / folder for folder in (*FOLDERS, "benchmarks", "tools", "examples")), ROOT / "docs"]
    files = [
        *(
            path
            for place in places
            for path in sorted(place.rglob("*"))
            if path.suffix in suffixes and "decisions" not in path.parts
        ),
        *(path for path in ROOT.glob("*.md") if path.name not in HISTORY),
        ROOT / "sark.py",
    ]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == [], "\n".join(found)


def test_every_thread_is_of_a_named_pool() -> None:
    """Threads that block in trio's own pool block all other users of that pool: slow DNS look-ups once stopped the disk."""
    unnamed = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path, tree in product().items()
        if path != ROOT / "swarm/base/threads.py"
        for call in ast.walk(tree)
        if isinstance(call, ast.Attribute)
        and ast.unparse(call) in {"trio.to_thread.run_sync", "trio.socket.getaddrinfo"}
    ]
    named = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path, tree in product().items()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and any(word.arg == "limiter" for word in call.keywords)
    ]
    assert [place for place in unnamed if place not in named] == []


def test_nothing_that_is_imported_changes_how_all_log() -> None:
    """A benchmark that tests imported configured logging, which hid every line from the tests that read the log."""
    paths = (
        path
        for folder in (*FOLDERS, "tests", "benchmarks", "examples", "tools")
        for path in sorted((ROOT / folder).rglob("*.py"))
    )
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in paths
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.Expr)
        and ast.unparse(node).startswith(("structlog.configure", "logging.basicConfig", "logging.disable"))
    ]
    assert not found


PATH_OF_THE_HOUSE: Final = re.compile(
    rf"(?<![\w/.~-])(?:{'|'.join((*FOLDERS, 'benchmarks', 'docs', 'tests', 'tools', 'examples'))})/[\w/.-]+\.(?:py|md|c)\b"
)


def test_files_that_are_named_exist() -> None:
    files = [*product(), *(ROOT / "benchmarks").rglob("*.py"), ROOT / "CONTRIBUTING.md", ROOT / "README.md"]
    named = [
        (file, found[0]) for file in files for found in PATH_OF_THE_HOUSE.finditer(file.read_text("utf-8"))
    ]
    assert len(named) > 100
    assert not [f"{file.relative_to(ROOT)}: {name}" for file, name in named if not (ROOT / name).exists()]
