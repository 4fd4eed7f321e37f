"""The files that a Transformers model's folder may hold, checked without `transformers` and before it reads them.

`config.json` names one of `transformers`' own architectures; weights are safetensors. Code and pickles are refused, whether or not anything
would open them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from drivers.contract.base import MIB, Unfit
from drivers.contract.formats import broken_is_unfit, read_json
from drivers.torch.safetensors import read
from protocol.formats.model_files import ModelFormat, read_format

CONFIG: Final = "config.json"
WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
MAX_CONFIG: Final = 4 * MIB
MAX_INDEX: Final = 64 * MIB
CODE: Final = frozenset({".py", ".pyc", ".so", ".pyd", ".dll", ".dylib", ".sh"})
PICKLES: Final = frozenset({".bin", ".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".joblib"})
DTYPES: Final = frozenset({"float64", "float32", "float16", "bfloat16"})
SPARE: Final = 1000
"""How many more layers than tensors a config may declare: shared layers have no tensors of their own."""
_CLASS: Final = re.compile(r"[A-Z][A-Za-z0-9_]{2,99}")
SAVE: Final = "save the model with model.save_pretrained(folder)"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A checked folder."""

    path: Path
    config: Mapping[str, object]
    architecture: str
    """The name of the model's class."""


@broken_is_unfit()
def open_folder(model: Path, *, quantised: bool = False) -> ModelFolder:
    """A checked folder. `quantised`: its weights may be quantised. Raises `Unfit`, saying what is wrong and what to do."""
    kind = read_format(model)
    if kind is not ModelFormat.TRANSFORMERS:
        raise Unfit(
            f"the Transformers units run a folder with a {CONFIG} and .safetensors files; this is another model ({kind})"
        )
    _refuse_files(model)
    with (model / CONFIG).open("rb") as source:
        data = source.read(MAX_CONFIG + 1)
    if len(data) > MAX_CONFIG:
        raise Unfit(f"{CONFIG} is larger than {MAX_CONFIG >> 20} MiB")
    config = read_json(data, CONFIG)
    tensors = _tensors(model)
    for key, value in _entries(config):
        _refuse_entry(key, value, tensors, quantised)
    return ModelFolder(model, config, _architecture(config))


def _refuse_files(model: Path) -> None:
    for path in sorted(model.rglob("*")):
        name, suffix = str(path.relative_to(model))[:100], path.suffix.lower()
        if suffix in CODE:
            raise Unfit(f"the folder holds {name!r}, a program, which is never run: take it out")
        if suffix in PICKLES:
            raise Unfit(
                f"the folder holds {name!r}, which may be a Python pickle and could run any program: take it out, {SAVE}"
            )
        if path.name == "adapter_config.json":
            raise Unfit(f"the folder holds an adapter ({name}): merge it into its model, {SAVE}")


def _tensors(model: Path) -> int:
    """The number of tensors in the weights; reads the headers of all files."""
    if (model / WEIGHTS).is_file():
        files = [model / WEIGHTS]
    elif (model / INDEX).is_file():
        files = _shards(model)
    else:
        raise Unfit(f"the folder holds no {WEIGHTS} and no {INDEX}: {SAVE}")
    return sum(len(read(file).tensors) for file in files)


def _shards(model: Path) -> list[Path]:
    with (model / INDEX).open("rb") as source:
        placed = read_json(source.read(MAX_INDEX), INDEX).get("weight_map")
    if not isinstance(placed, dict) or not all(isinstance(name, str) for name in placed.values()):
        raise Unfit(f"{INDEX} does not say where the weights are: {SAVE}")
    files = []
    for name in sorted(set(placed.values())):
        file = model / name
        if Path(name).name != name or file.suffix != ".safetensors" or not file.is_file():
            raise Unfit(f"{INDEX} names {name[:100]!r}, which is not a .safetensors file in the folder")
        files.append(file)
    return files


def _entries(config: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """All keys and values, including those of nested configs."""
    waiting: list[object] = [config]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield from part.items()
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)


def _refuse_entry(key: str, value: object, tensors: int, quantised: bool) -> None:
    if key == "auto_map":
        raise Unfit(f"{CONFIG} says auto_map: the model brings its own code, which is never run")
    if key in ("quantization_config", "compression_config") and value and not quantised:
        raise Unfit(f"{CONFIG} says {key}: quantised weights are not supported, give floating-point ones")
    if key.endswith(("attn_implementation", "experts_implementation")) and "/" in str(value):
        raise Unfit(f"{CONFIG} says {key}: {str(value)[:60]}, code from elsewhere, which is never run")
    if key in ("dtype", "torch_dtype") and value is not None and value not in DTYPES:
        raise Unfit(f"{CONFIG} says {key}: {str(value)[:40]}; {', '.join(sorted(DTYPES))} are supported")
    if key.endswith("layers") and type(value) is int and value > tensors + SPARE:
        raise Unfit(f"{CONFIG} says {key}: {value}, but the weights have {tensors} tensors")


def _architecture(config: Mapping[str, object]) -> str:
    named = config.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
        raise Unfit(f'{CONFIG} does not name the model\'s class: write "architectures": ["BertModel"]')
    if _CLASS.fullmatch(named[0]) is None:
        raise Unfit(
            f"{CONFIG} names the architecture {named[0][:60]!r}, which is not a class of transformers"
        )
    return named[0]
