# The public names of `import sark`, for type checkers. The program itself is sark.py; this folder only holds its submodules.
from collections.abc import Sequence
from pathlib import Path

import typer

from drivers.contract.base import Driver as Driver
from drivers.contract.base import Unfit as Unfit
from drivers.contract.base import UnitInfo as UnitInfo
from drivers.contract.base import WorkOrder as WorkOrder
from results.analysis.compare import Comparison as Comparison
from scheduler.local.bench import Bench as Bench
from scheduler.local.bench import Measurement as Measurement

app: typer.Typer

def main(arguments: Sequence[str] | None = None) -> None: ...
def open_bench(home: Path | None = None, *, simulate: bool = False) -> Bench: ...
