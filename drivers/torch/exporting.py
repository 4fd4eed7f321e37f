"""Imported for what it imports: the parts of torch that load exported programs, which take seconds and belong to no model's load time."""

from __future__ import annotations

import contextlib
import importlib
from typing import Final

PARTS: Final = (
    "torch.export.pt2_archive._package",
    "torch._export.serde.serialize",
    "torch._inductor.output_code",
)
"""Not public, so a version without one is no error: it is then imported with the first program."""

for _part in PARTS:
    with contextlib.suppress(ImportError):
        importlib.import_module(_part)
