"""Imports the parts of torch that load exported programs: this takes seconds, which must not count as a model's load time."""

from __future__ import annotations

import contextlib
import importlib
from typing import Final

PARTS: Final = (
    "torch.export.pt2_archive._package",
    "torch._export.serde.serialize",
    "torch._inductor.output_code",
)
"""These are not public: if a version of torch lacks one, that is not an error."""

for _part in PARTS:
    with contextlib.suppress(ImportError):
        importlib.import_module(_part)
