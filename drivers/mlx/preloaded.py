"""mlx-lm, imported once for all launches where these are forked: the import takes seconds. mlx-lm asks for more open files than a child may
have."""

from __future__ import annotations

import contextlib

import drivers.mlx.runtime as runtime
from drivers.contract.base import Unfit

with contextlib.suppress(Unfit):
    runtime.parts()
