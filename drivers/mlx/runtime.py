"""The interface to MLX and mlx-lm. Imported late, in the child or its zygote: mlx-lm imports transformers, whose environment variables say
that there is no network."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from drivers.contract.base import Unfit

OFFLINE: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}
EXTRA: Final = "python -m pip install 'sark-node[mlx]'"
_TYPE: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

os.environ.update(OFFLINE)


def runtime() -> Any:
    """`mlx.core`. Raises `Unfit` if it is not installed."""
    return _part("mlx.core")


def title(mx: Any) -> str:
    """Title for the row: `mlx 0.32.4, mlx-lm 0.31.3`."""
    return f"mlx {mx.__version__}, mlx-lm {metadata.version('mlx-lm')}"


def parts() -> tuple[Any, Any]:
    """mlx-lm's loader, and its module for cached keys and values. Raises `Unfit`."""
    return _part("mlx_lm.utils"), _part("mlx_lm.models.cache")


def check_architecture(config: Mapping[str, object]) -> None:
    """Raise `Unfit` unless the architecture is one of mlx-lm's own; import it. `config`: config of the model's folder."""
    if config.get("model_file") is not None:
        raise Unfit("config.json says model_file: the model brings its own code, which is never run")
    kind = config.get("model_type")
    utils, _ = parts()
    if not isinstance(kind, str) or _TYPE.fullmatch(kind) is None:
        raise Unfit("config.json does not say the model_type, such as llama")
    name = f"mlx_lm.models.{utils.MODEL_REMAPPING.get(kind, kind)}"
    if find_spec(name) is None:
        raise Unfit(f"mlx-lm {metadata.version('mlx-lm')} has no model of the type {kind!r}")
    _part(name)


def load_model(folder: Path) -> Any:
    """The model with its weights in memory. Raises mlx-lm's errors."""
    utils, _ = parts()
    model, _ = utils.load_model(folder, lazy=False, strict=True)
    return model


def _part(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as why:
        raise Unfit(f"{name} cannot be imported: {why}; {EXTRA}") from why
