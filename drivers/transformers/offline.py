"""The interface to `transformers`, whose environment variables say that there is no network. Imported late, in the child or its zygote."""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import Any, Final

from drivers.contract.base import Unfit
from drivers.torch.models import runtime as torch_runtime
from drivers.transformers.units import EXTRA

OFFLINE: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
}
PARTS: Final = ("transformers.modeling_utils", "transformers.models.auto", "transformers.cache_utils")
"""Modules that every model needs and that take seconds to import."""

os.environ.update(OFFLINE)


def runtime() -> Any:
    """`transformers`. Raises `Unfit` if it is not installed."""
    try:
        return importlib.import_module("transformers")
    except ImportError as why:
        raise Unfit(f"transformers cannot be imported: {why}; {EXTRA}") from why


def title(transformers: Any) -> str:
    """Title for the row: `transformers 5.23.0, torch 2.13.0`."""
    return f"transformers {transformers.__version__}, torch {torch_runtime().__version__}"


with contextlib.suppress(ImportError, Unfit):
    for _part in ("torch", *PARTS):
        importlib.import_module(_part)
    runtime().utils.logging.disable_progress_bar()  # else a thread watches it
