"""One order's Transformers model: an architecture of `transformers` itself with the folder's weights, run like any torch model.

Imported late, in the child or its zygote.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

from drivers.contract.base import Unfit, WorkOrder
from drivers.torch.model import TorchModel
from drivers.torch.models import ModelGraph, torch_errors
from drivers.torch.models import runtime as torch_runtime
from drivers.torch.units import device_for
from drivers.transformers.folder import ModelFolder, open_folder
from drivers.transformers.offline import runtime, title
from drivers.transformers.ports import inputs_of
from drivers.transformers.units import UNITS
from protocol.formats.model_files import ModelFormat


def open_model(order: WorkOrder) -> TransformersModel:
    """The order's model: a causal language model generates tokens, any other model makes one forward pass."""
    causal = importlib.import_module("drivers.transformers.causal")
    device_for(torch_runtime(), order.unit, order.gpu, UNITS)
    folder = open_folder(Path(order.model))
    kind = causal.CausalModel if causal.generates(folder.architecture) else TransformersModel
    opened: TransformersModel = kind(order, folder)
    return opened


class TransformersModel(TorchModel):
    """A model that makes one forward pass per inference."""

    units = UNITS
    _class: Any

    def __init__(self, order: WorkOrder, folder: ModelFolder) -> None:
        self._folder = folder
        super().__init__(order)
        self.runtime = title(runtime())

    def check_format(self, model: Path) -> ModelFormat:
        self._class = architecture(self._folder.architecture)
        return ModelFormat.TRANSFORMERS

    def graph(self, device: str) -> ModelGraph:
        best = "sdpa" if getattr(self._class, "_supports_sdpa", False) else "eager"
        return self._graph_of(self._open("auto", best).to(device))

    def reference_graph(self, *, wide: bool) -> ModelGraph:
        """The model on the CPU, with attention computed step by step (`eager`)."""
        return self._graph_of(self._open(self._torch.float32 if wide else "auto", "eager"))

    def _open(self, dtype: Any, attention: str) -> Any:
        """The model on the CPU. Raises `Unfit` unless the folder has all its weights: missing ones would get random values."""
        with torch_errors():
            module, found = self._class.from_pretrained(
                str(self._folder.path),
                config=self._config(),
                dtype=dtype,
                attn_implementation=attention,
                output_loading_info=True,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
            )
        if missing := sorted(found["missing_keys"]):
            raise Unfit(
                f"the weights lack {missing[0][:100]!r}, which a {self._folder.architecture} has"
                + (f", and {len(missing) - 1} more" if len(missing) > 1 else "")
            )
        return module.eval()

    def _config(self) -> Any:
        config = runtime().AutoConfig.from_pretrained(
            str(self._folder.path), trust_remote_code=False, local_files_only=True
        )
        wanted = self._class.config_class
        if wanted is not None and not isinstance(config, wanted):
            raise Unfit(
                f"config.json has the type {config.model_type}, but its architecture {self._folder.architecture} is not"
            )
        return config

    def _graph_of(self, module: Any) -> ModelGraph:
        takes = inspect.signature(module.forward).parameters
        dtype = str(module.dtype).removeprefix("torch.")
        inputs = inputs_of(module.config, takes, module.main_input_name, dtype)
        names = tuple(one.name for one in inputs)
        plain = {"use_cache": False} if "use_cache" in takes else {}

        def call(*fed: Any) -> Any:
            return module(**dict(zip(names, fed, strict=True)), **plain)

        return ModelGraph(call, module, inputs, (self.title_of(module),))

    def title_of(self, module: Any) -> str:
        """Title for the row's notes."""
        dtype = str(module.dtype).removeprefix("torch.")
        return f"{self._folder.architecture}, {dtype}, attention: {module.config._attn_implementation}"


def architecture(name: str) -> Any:
    """A model class of `transformers` itself. Raises `Unfit`."""
    transformers = runtime()
    try:
        found = getattr(transformers, name, None)
        base = importlib.import_module("transformers.modeling_utils").PreTrainedModel
    except (ImportError, RuntimeError) as why:
        raise Unfit(f"transformers cannot import {name}: {str(why).strip().splitlines()[-1][:300]}") from why
    if not isinstance(found, type) or not issubclass(found, base) or found is base:
        raise Unfit(f"transformers {transformers.__version__} has no model class {name!r}")
    return found
