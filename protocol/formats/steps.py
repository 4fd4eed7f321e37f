"""Pre-run and post-run steps by name: the closed list, with the options of each. Drivers apply them (`drivers.contract.steps`).

    {"step": "normalise", "of": "pixels", "options": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}}

`of` names an input (pre-run) or an output (post-run); it may be omitted if there is only one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

MAX_LIST: Final = 4096
"""Most entries in a list option."""
MAX_NAME: Final = 500


class StepKind(StrEnum):
    """The kind of value that an option takes."""

    NUMBER = "a number"
    NUMBERS = "a number or a list of numbers"
    WHOLE = "a whole number"
    AXES = "a list of axes"
    TYPE = "the name of a type"


TYPES: Final = (
    *("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64"),
)


@dataclass(frozen=True, slots=True)
class StepOption:
    """One option: its kind, its range (inclusive) and its default (None: it is required)."""

    kind: StepKind
    default: Any = None
    least: float = -1e30
    most: float = 1e30


_AXIS: Final = StepOption(StepKind.WHOLE, -1, -8, 7)

PRE: Final[dict[str, dict[str, StepOption]]] = {
    "normalise": {
        "mean": StepOption(StepKind.NUMBERS, 0.0),
        "std": StepOption(StepKind.NUMBERS, 1.0, 1e-30),
        "scale": StepOption(StepKind.NUMBER, 1.0),
        "axis": StepOption(StepKind.WHOLE, 1, -8, 7),
    },
    "scale": {"by": StepOption(StepKind.NUMBER), "offset": StepOption(StepKind.NUMBER, 0.0)},
    "clip": {"low": StepOption(StepKind.NUMBER), "high": StepOption(StepKind.NUMBER)},
    "transpose": {"order": StepOption(StepKind.AXES, None, 0, 7)},
    "cast": {"from": StepOption(StepKind.TYPE)},
}
"""Applied to an input before the model gets it. `transpose`, `cast`: the raw input has a different layout or type than the model's."""
POST: Final[dict[str, dict[str, StepOption]]] = {
    "softmax": {"axis": _AXIS},
    "sigmoid": {},
    "argmax": {"axis": _AXIS},
    "top_k": {"k": StepOption(StepKind.WHOLE, None, 1, 1_000_000), "axis": _AXIS},
}
"""Applied to an output of the last inference."""


def problem(step: Mapping[str, Any], allowed: Mapping[str, Mapping[str, StepOption]] = PRE) -> str:
    """What is wrong with a step and what is allowed, in one line; empty if nothing is wrong. `allowed`: `PRE` or `POST`."""
    name, of, options = step.get("step"), step.get("of", ""), step.get("options", {})
    if unknown := sorted(str(key) for key in step.keys() - {"step", "of", "options"}):
        return f"a step has no {unknown[0][:60]!r}: its keys are step, of and options"
    if not isinstance(name, str) or name not in allowed:
        return f"there is no step {str(name)[:60]!r} here: there are {', '.join(allowed)}"
    if not isinstance(of, str) or len(of) > MAX_NAME:
        return f"{name}: 'of' must be the name of an input or output"
    if not isinstance(options, Mapping):
        return f"{name}: its options must be a mapping"
    if unknown := sorted(str(key) for key in options.keys() - allowed[name].keys()):
        takes = ", ".join(allowed[name]) or "none"
        return f"{name} has no option {unknown[0][:60]!r}: it takes {takes}"
    for key, option in allowed[name].items():
        if key not in options:
            if option.default is None:
                return f"{name} needs the option {key}: {option.kind}"
        elif wrong := _wrong(options[key], option):
            return f"{name}: {key} is {wrong}"
    low, high = options.get("low"), options.get("high")
    if name == "clip" and low is not None and high is not None and low > high:
        return "clip: low is above high"
    return ""


def _wrong(value: Any, option: StepOption) -> str:
    text = str(value)[:60]
    if option.kind is StepKind.TYPE:
        return "" if value in TYPES else f"{text!r}, not one of {', '.join(TYPES)}"
    listed = option.kind is StepKind.AXES or (option.kind is StepKind.NUMBERS and _is_list(value))
    if option.kind is StepKind.AXES and not (
        _is_list(value) and sorted(map(str, value)) == sorted(map(str, range(len(value))))
    ):
        return f"{text}, not a list with each axis once, such as [0, 3, 1, 2]"
    entries = list(value) if listed else [value]
    if not 0 < len(entries) <= MAX_LIST:
        return f"a list of {len(entries)} entries; 1 to {MAX_LIST} are allowed"
    whole = option.kind in (StepKind.WHOLE, StepKind.AXES)
    for entry in entries:
        if isinstance(entry, bool) or not isinstance(entry, int if whole else int | float):
            return f"{str(entry)[:60]!r}, not {option.kind}"
        if not option.least <= entry <= option.most:
            return f"{entry:g}; it must be between {option.least:g} and {option.most:g}"
    return ""


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes) and len(value) <= MAX_LIST
