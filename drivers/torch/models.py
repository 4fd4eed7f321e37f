"""The interface to torch: loads a model of any of its formats on a device, describes its inputs, returns its outputs as arrays.

Imported late, in the child or its zygote. `torch.load` is called in one place, with `weights_only=True`; `drivers.torch.archive` refuses
everything else that torch would unpickle.
"""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from drivers.contract.base import Crashed, OutOfMemory, Unfit, WorkOrder
from drivers.contract.registry import BROKEN_DRIVER_ERRORS
from drivers.inputs.feeds import NAMES, read_declared
from drivers.inputs.synthetic import Input
from drivers.torch import archive
from drivers.torch.architectures import Declaration, open_declared
from drivers.torch.safetensors import Weights
from protocol.formats.model_files import ModelFormat

FLOATS: Final[Mapping[str, str]] = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
NO_INPUTS: Final = (
    "a TorchScript model does not store the types and shapes of its inputs ({names}): declare them in the campaign, under "
    "the model: inputs: {{{first}: 'float32[1, 3, 224, 224]'}}"
)

_NO_MEMORY: Final = re.compile(
    r"bad_alloc|ALLOC_FAILED|not enough memory|out of memory|can't allocate|Cannot allocate"
)

_ADVICE: Final = re.compile(
    r"Search for `|(CUDA|HIP) kernel errors might|For debugging consider|Compile with `|Device-side assertion tracking"
)
"""Advice that torch adds to every GPU error, whatever the error is."""


def runtime() -> Any:
    """Torch. Raises `Unfit` if it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError as why:
        raise Unfit(f"torch cannot be imported: {why}; python -m pip install 'sark-node[torch]'") from why


@dataclass(frozen=True, slots=True)
class ModelGraph:
    """A model on its device, ready to be called with tensors in the order of `inputs`."""

    call: Callable[..., Any]
    module: Any
    """Module with `named_parameters` and `named_buffers`."""
    inputs: tuple[Input, ...]
    notes: tuple[str, ...] = ()


@contextmanager
def torch_errors() -> Any:
    """Turns torch's errors into `DriverError`."""
    torch = runtime()
    try:
        yield
    except torch.OutOfMemoryError as why:
        raise OutOfMemory(f"out of memory: {_short(why)}") from why
    except (*BROKEN_DRIVER_ERRORS, AssertionError) as why:
        if _NO_MEMORY.search(str(why)):
            raise OutOfMemory(f"out of memory: {_short(why)}") from why
        if isinstance(
            why, getattr(torch, "AcceleratorError", ())
        ) and "device-side assert triggered" not in str(why):
            raise Crashed(f"torch: {_short(why)}") from why  # a GPU that is busy or broken: another may work
        raise Unfit(f"torch: {_short(why)}") from why


def _short(why: Exception) -> str:
    lines = [line.strip() for line in str(why).splitlines()]
    lines = [line for line in lines if line and not _ADVICE.match(line)]
    return f"{type(why).__name__}: {' '.join(lines[-2:] if len(lines) > 3 else lines)[:500]}"


def load(kind: ModelFormat, order: WorkOrder, device: str, wide: bool = False) -> ModelGraph:
    """The model on the device. `wide`: with its floating parameters as float32, for a reference. Raises a `DriverError`."""
    model = Path(order.model)
    with torch_errors():
        match kind:
            case ModelFormat.TORCHSCRIPT:
                return _script(model, order, device, wide)
            case ModelFormat.EXPORTED:
                return _exported(model, device)
            case _:
                return _declared(model, kind, device, wide)


# -- the formats ---------------------------------------------------------------------------------------------------------


def _script(model: Path, order: WorkOrder, device: str, wide: bool) -> ModelGraph:
    torch = runtime()
    module = torch.jit.load(str(model), map_location=device).eval()
    if wide:
        module.float()
    arguments = [one for one in module.forward.schema.arguments if one.name != "self"]
    needed = [one for one in arguments if not one.has_default_value()]
    if odd := next((one for one in needed if str(one.type) != "Tensor"), None):
        raise Unfit(
            f"input {odd.name!r} is a {str(odd.type)[:60]}, which cannot be generated; inputs must be tensors"
        )
    given = [one.name for one in arguments if one.name in order.inputs]
    if missing := [one.name for one in needed if one.name not in order.inputs]:
        raise Unfit(NO_INPUTS.format(names=", ".join(missing)[:200], first=missing[0][:50]))
    if unknown := sorted(set(order.inputs) - set(given)):
        names = ", ".join(one.name for one in arguments)
        raise Unfit(f"the campaign declares the input {unknown[0][:60]!r}; the model's are {names[:200]}")
    inputs = tuple(read_declared(name, order.inputs[name]) for name in given)
    return ModelGraph(lambda *fed: module(**dict(zip(given, fed, strict=True))), module, inputs)


def _exported(model: Path, device: str) -> ModelGraph:
    torch = runtime()
    for name, pickled in archive.sample_inputs(model).items():
        _try_restricted(name, pickled)
    program = torch.export.load(str(model))
    if device != "cpu":
        program = importlib.import_module("torch.export.passes").move_to_device_pass(program, device)
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    inputs = tuple(_program_input(name, values.get(name)) for name in program.graph_signature.user_inputs)
    module = program.module()
    spec = program.call_spec.in_spec

    def call(*fed: Any) -> Any:
        args, kwargs = torch.utils._pytree.tree_unflatten(fed, spec)
        return module(*args, **kwargs)

    places = list(range(len(inputs)))
    args, kwargs = torch.utils._pytree.tree_unflatten(places, spec)
    flat = not kwargs and list(args) == places  # positional tensors need no unflattening in each inference
    notes = ("the program's guards on its inputs run with each inference",)
    return ModelGraph(module if flat else call, module, inputs, notes)


def _try_restricted(name: str, pickled: bytes) -> None:
    """Refuse a sample input that torch's restricted unpickler refuses: torch would then use the unrestricted one."""
    import pickle

    torch = runtime()
    if not pickled:
        return
    try:
        torch.load(io.BytesIO(pickled), weights_only=True, map_location="cpu")
    except (*BROKEN_DRIVER_ERRORS, pickle.UnpicklingError, EOFError) as why:
        raise Unfit(
            f"the torch.export program's {name} is a pickle with more than tensors, which is never opened: "
            "export it with tensors as example inputs"
        ) from why


def _program_input(name: object, value: Any) -> Input:
    torch = runtime()
    if not isinstance(name, str) or not isinstance(value, torch.Tensor):
        raise Unfit(f"input {str(name)[:60]!r} of the program is not a tensor; inputs must be tensors")
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in NAMES:
        raise Unfit(f"input {name!r} is of type {dtype}, which cannot be generated")
    shape = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
    return Input(name, NAMES[dtype], shape)


def _declared(model: Path, kind: ModelFormat, device: str, wide: bool) -> ModelGraph:
    torch = runtime()
    declaration, weights = open_declared(model, kind)
    with torch.device("meta"):
        module = build(torch, declaration)
    dtypes = {FLOATS[weights.tensors[name].dtype] for name in declaration.weights()}
    state = {name: tensor_of(torch, weights, name) for name in declaration.weights()}
    module.load_state_dict(state, strict=True, assign=True)
    dtype = "float32" if wide else next(iter(dtypes))
    module = module.to(device=device, dtype=getattr(torch, dtype)).eval()
    if declaration.architecture == "transformer-encoder":
        module.enable_nested_tensor = False
    return ModelGraph(module, module, (Input("x", NAMES[dtype], declaration.input_shape()),))


def tensor_of(torch: Any, weights: Weights, name: str) -> Any:
    """One weight as a tensor."""
    tensor = torch.from_numpy(weights.array(name))
    return tensor.view(torch.bfloat16) if weights.tensors[name].dtype == "BF16" else tensor


def build(torch: Any, declaration: Declaration) -> Any:
    """The declared network, without its weights."""
    nn, sizes = torch.nn, declaration.sizes
    activation = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}[
        sizes["activation"]
    ]
    if declaration.architecture == "transformer-encoder":
        of = (sizes["width"], sizes["heads"], sizes["feedforward"])
        layer = nn.TransformerEncoderLayer(*of, dropout=0.0, activation=sizes["activation"], batch_first=True)
        return nn.TransformerEncoder(layer, sizes["layers"], enable_nested_tensor=False)
    layers: list[Any] = []
    if declaration.architecture == "mlp":
        widths = [sizes["inputs"], *sizes["hidden"], sizes["outputs"]]
        for ins, outs in pairwise(widths):
            layers += [nn.Linear(ins, outs), activation()]
        return nn.Sequential(*layers[:-1])
    channels = sizes["channels"]
    for ins, outs in pairwise(channels):
        layers += [nn.Conv2d(ins, outs, sizes["kernel"], padding="same"), activation(), nn.MaxPool2d(2)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], sizes["outputs"])]
    return nn.Sequential(*layers)


# -- values ---------------------------------------------------------------------------------------------------------------


def to_tensor(values: np.ndarray[Any, Any], spec: Input, device: str) -> Any:
    """An array as a tensor on the device."""
    torch = runtime()
    tensor = torch.from_numpy(np.ascontiguousarray(values).reshape(values.shape))
    return (tensor.view(torch.bfloat16) if spec.dtype == "bfloat16" else tensor).to(device)


def flat_outputs(outputs: Any, name: str = "output") -> dict[str, Any]:
    """The tensors in a model's outputs, named by a dict's keys or a list's indices."""
    torch = runtime()
    if isinstance(outputs, torch.Tensor):
        return {name: outputs}
    if isinstance(outputs, Mapping):
        entries = [(str(key), value) for key, value in outputs.items()]
    elif isinstance(outputs, Sequence) and not isinstance(outputs, str):
        entries = [(f"{name}_{index}", value) for index, value in enumerate(outputs)]
    else:
        return {}
    return {key: value for entry, part in entries for key, value in flat_outputs(part, entry).items()}


def as_arrays(tensors: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Copies of tensors as arrays on the host; bfloat16 is widened to float32."""
    torch = runtime()
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().to("cpu")
        if plain.is_sparse or plain.is_quantized:
            plain = plain.dequantize() if plain.is_quantized else plain.to_dense()
        arrays[name] = (plain.float() if plain.dtype == torch.bfloat16 else plain).contiguous().numpy().copy()
    return arrays
