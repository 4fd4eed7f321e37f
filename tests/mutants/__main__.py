"""Puts one bug after the other into a copy of the tree and runs the tests that should find it there.

python -m tests.mutants [--only WORD] [--report docs/mutants.md]      exit 1 if a bug of a promise's kind survives, or more than 5 % of all
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from tests.mutants.catalogue import MUTANTS, PROMISES, SourceMutant, changed
from tests.simulation.mutants import MUTANTS as SIMULATED

ROOT: Final = Path(__file__).parents[2]
LEFT_OUT: Final = shutil.ignore_patterns(
    ".git", ".venv*", "build", "dist", ".*_cache", ".hypothesis", "node_modules"
)
ENOUGH: Final = 0.95
WITHIN_S: Final = 900.0
FOUND: Final = 1
"""pytest: tests failed. Other codes are errors of the run itself."""
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?:\[.*)?(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Fate:
    """`killer`: the test that found it; empty: it survived."""

    mutant: SourceMutant
    killer: str
    seconds: float


class Tree:
    """A copy of the tree in which tests run."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        shutil.copytree(ROOT, self.root, ignore=LEFT_OUT, symlinks=True)
        self._times = count(2_000_000_000)
        """Of files that are written: Python tells by them that what it compiled is old."""

    def write(self, path: str, text: str) -> None:
        file, when = self.root / path, next(self._times)
        file.write_text(text, "utf-8")
        os.utime(file, (when, when))

    def test(self, tests: Sequence[str]) -> tuple[int, str]:
        """pytest's exit code and output; a run that hangs has found the bug too."""
        words = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "not slow",
            *tests,
        ]
        env = os.environ | {"PYTHONPATH": str(self.root)}
        try:
            done = subprocess.run(
                words, cwd=self.root, env=env, capture_output=True, text=True, timeout=WITHIN_S, check=False
            )
        except subprocess.TimeoutExpired:
            return FOUND, f"FAILED {tests[0]}::(hangs)"
        return done.returncode, done.stdout


def try_out(tree: Tree, mutant: SourceMutant) -> Fate:
    """Raises `RuntimeError` when the tests cannot run with it: then it shows nothing."""
    began, source = time.monotonic(), (tree.root / mutant.path).read_text("utf-8")
    tree.write(mutant.path, changed(source, mutant))
    try:
        code, out = tree.test(mutant.tests)
    finally:
        tree.write(mutant.path, source)
    if code not in (0, FOUND):
        raise RuntimeError(f"{mutant.name}: pytest ended with {code}\n{out[-3000:]}")
    names = _FAILED.findall(out)
    killer = "" if code == 0 else names[-1] if names else mutant.tests[0]
    return Fate(mutant, killer, time.monotonic() - began)


def page(fates: Sequence[Fate]) -> str:
    """`docs/mutants.md`."""
    found = sum(bool(fate.killer) for fate in fates)
    lines = [
        "# Bugs that the tests find",
        "",
        "`make mutants` puts each of these bugs into a copy of the source and runs the tests named for it; this page is what it wrote.",
        f"{found} of {len(fates)} were found. The simulation finds another {len(SIMULATED)} (`tests/simulation/mutants.py`).",
        "",
        "| kind | bug | in | found by |",
        "|---|---|---|---|",
    ]
    for fate in fates:
        killer = f"`{fate.killer.partition('::')[2] or fate.killer}`" if fate.killer else "**nothing**"
        lines.append(f"| {fate.mutant.kind} | {fate.mutant.name} | `{fate.mutant.path}` | {killer} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description="Bugs, and the tests that find them."
    )
    parser.add_argument(
        "--only", default="", metavar="WORD", help="those with this word in their kind or name"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the table there")
    parser.add_argument("--untried", action="store_true", help="do not run the tests without a bug first")
    given = parser.parse_args()
    chosen = [each for each in MUTANTS if given.only in f"{each.kind} {each.name}"]
    if not chosen:
        parser.error(f"no bug has {given.only!r} in its kind or name")
    fates: list[Fate] = []
    with tempfile.TemporaryDirectory(prefix="sark-mutants-") as folder:
        tree = Tree(Path(folder))
        if not given.untried:
            code, out = tree.test(sorted({test for each in chosen for test in each.tests}))
            if code:
                print(f"the tests fail without any bug:\n{out[-3000:]}")
                return 2
        for mutant in chosen:
            fate = try_out(tree, mutant)
            fates.append(fate)
            print(
                f"{fate.seconds:5.1f} s  {mutant.kind}: {mutant.name}: {fate.killer or 'SURVIVES'}",
                flush=True,
            )
    left = [fate.mutant for fate in fates if not fate.killer]
    print(f"{len(fates) - len(left)} of {len(fates)} were found")
    if given.report is not None:
        given.report.write_text(page(fates), "utf-8")
    return 1 if len(left) > (1 - ENOUGH) * len(fates) or any(each.kind in PROMISES for each in left) else 0


if __name__ == "__main__":
    sys.exit(main())
