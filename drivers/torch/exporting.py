"""Imports the parts of torch that load exported programs: they take seconds, which must not count as a model's load time."""

from __future__ import annotations

import contextlib
import importlib
from typing import Final

PARTS: Final = (
    "torch.export.pt2_archive._package",
    "torch._export.serde.serialize",
    "torch._inductor.output_code",
)
"""Not public: a version of torch may lack one, which is no error."""

for _part in PARTS:
    with contextlib.suppress(ImportError):
        importlib.import_module(_part)
