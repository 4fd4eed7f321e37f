"""Determines the shape of each input of a model, from what the model fixes and what its user gives. Pure.

Only the batch is guessed, as 1 unless given: a time without its shape means nothing. A dynamic axis is named by its symbol (`height`),
which stands for all axes with that symbol, or by its position (`x[2]`), which stands for one. A shape is given for a whole input.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

BATCH: Final = re.compile(r"^(n|b|bs|batch.*|.*batch(_?size)?|num_?batch.*)$", re.IGNORECASE)
"""Symbols that mean the batch."""
PLACEHOLDER: Final = re.compile(r"^(\?|-1|none|unk|unknown|dyn|dynamic)?$", re.IGNORECASE)
"""Symbols that mean nothing: two axes with such a symbol may differ."""
_OPAQUE: Final = re.compile(
    r"^(unk_*\d+|dynamicdimension\.\d+|p2o\..*|s\d+|dim_?\d+|dynamic_axes_\d+)$", re.IGNORECASE
)
"""Symbols numbered by exporters, which do not say what the axis is."""
STATE: Final = re.compile(r"state|hidden|^(h|c|h0|c0|hx|cx|hn|cn)$", re.IGNORECASE)
USUAL: Final[tuple[tuple[re.Pattern[str], int], ...]] = (
    (re.compile(r"past|cache", re.IGNORECASE), 16),
    (re.compile(r"seq|len|tokens?|^t$|time|frames?|steps?|words?|chars?", re.IGNORECASE), 128),
    (re.compile(r"^(c|ch|channels?|num_?channels?)$", re.IGNORECASE), 3),
    (re.compile(r"^(h|w|height|width|.*_(height|width)|img_?(h|w)|image_?size)$", re.IGNORECASE), 224),
    (re.compile(r"samples?|audio", re.IGNORECASE), 16000),
)
"""Sizes by symbol, used in suggested examples. Never applied automatically."""
RATES: Final = frozenset({"sr", "sample_rate", "sampling_rate"})
"""Inputs that give the number of sound samples per second."""
SOUND: Final = 512
"""Number of samples that such models take at once."""
IMAGE_CHANNELS: Final = (1, 3, 4)
MAX_SIZE: Final = 2**31
_SHAPE: Final = re.compile(r"\s*\d{1,10}\s*([,x×]\s*\d{1,10}\s*)*")

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InputPort:
    """One input of a model. `shape` entries: a size, a symbol, or None for a nameless dynamic axis."""

    name: str
    shape: tuple[int | str | None, ...]

    def key(self, axis: int) -> str:
        return f"{self.name}[{axis}]"

    def symbol(self, axis: int) -> str | None:
        """The symbol of a dynamic axis; None: it has no meaningful symbol."""
        size = self.shape[axis]
        return None if not isinstance(size, str) or PLACEHOLDER.match(size) or _OPAQUE.match(size) else size

    def dynamic(self) -> Iterator[int]:
        return (axis for axis, size in enumerate(self.shape) if not isinstance(size, int))

    def text(self) -> str:
        """`1×3×height×?`."""
        return "×".join(
            str(size) if isinstance(size, int) else self.symbol(axis) or "?"
            for axis, size in enumerate(self.shape)
        )


@dataclass(frozen=True, slots=True)
class GivenSizes:
    """What a user gives for a model's inputs."""

    dims: Mapping[str, int] = field(default_factory=dict)
    """Sizes by symbol or `input[axis]`."""
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Whole shapes by input."""
    batch: int | None = None
    batch_dim: str | None = None
    """The dynamic axis that is the batch, by symbol or `input[axis]`; None: the first one of the inputs."""
    own: Collection[str] | None = None
    """Those of `dims` that the model must have; the others may be for other models. None: all."""


class ShapeError(ValueError):
    """The given sizes do not match the model's inputs. `hint`: what to do."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(f"{what}; {hint}" if hint else what)
        self.what, self.hint = what, hint


class MissingShape(ShapeError):
    """Inputs have axes without a size. `example`: a shape for each of them, with usual sizes where sizes are unknown."""

    def __init__(self, ports: Sequence[InputPort], example: Mapping[str, Shape]) -> None:
        self.example = dict(example)
        super().__init__(
            f"{'inputs' if len(ports) > 1 else 'input'} {_sides(ports)}: give the sizes", self.options
        )

    @property
    def options(self) -> str:
        """The example as command-line options."""
        return "such as " + " ".join(
            f"--shape '{name}={show_shape(shape, ',')}'" for name, shape in self.example.items()
        )

    @property
    def yaml(self) -> str:
        """The example as a campaign's entry for a model."""
        shapes = ", ".join(f"{name}: {list(shape)}" for name, shape in self.example.items())
        return f"such as inputs: {{{shapes}}}"


def read_shape(text: str) -> Shape:
    """`1,3,224,224` or `1x3x224x224`; empty: a scalar. Raises `ValueError`."""
    if not text.strip():
        return ()
    if _SHAPE.fullmatch(text) is None:
        raise ValueError(f"{text[:100]!r} is not a shape such as 1,3,224,224")
    return tuple(int(size) for size in re.split(r"[,x×]", text))


def show_shape(shape: Sequence[int], between: str = "×") -> str:
    return between.join(map(str, shape))


def dim_keys(ports: Sequence[InputPort]) -> frozenset[str]:
    """All keys by which a dynamic axis can be named."""
    return frozenset(_Sizes(ports).axes)


def resolve(ports: Sequence[InputPort], given: GivenSizes) -> dict[str, Shape]:
    """The shape of each input. Raises `ShapeError` for an axis without a size, a size without an axis, or two sizes for one axis."""
    sizes = _Sizes(ports)
    for name, shape in given.shapes.items():
        sizes.give_shape(name, tuple(shape))
    for key, size in given.dims.items():
        if given.own is None or key in given.own or key in sizes.axes:
            sizes.give(key, size)
    if given.batch is not None:
        for key in _batch_axes(ports, given.batch_dim, given.batch):
            sizes.give(key, given.batch, what="the batch")
    sizes.spread_symbols()
    for port, axis in _default_batch(ports):
        sizes.known.setdefault((port.name, axis), 1)
    sizes.spread_symbols()
    missing = [port for port in ports if any((port.name, axis) not in sizes.known for axis in port.dynamic())]
    if missing:
        raise MissingShape(missing, {port.name: sizes.example(port) for port in missing})
    return {port.name: sizes.of(port) for port in ports}


def _sides(ports: Sequence[InputPort]) -> str:
    """`x is 1×3×height×width, y is 1×?`."""
    named = ", ".join(f"{port.name} is {port.text() or 'a scalar'}" for port in ports[:4])
    return named + (f" and {len(ports) - 4} more" if len(ports) > 4 else "")


def _nearest(word: str, words: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, words, n=1)
    return f"did you mean {near[0]}?" if near else ""


class _Sizes:
    """Sizes of dynamic axes, by input and axis."""

    def __init__(self, ports: Sequence[InputPort]) -> None:
        self.ports = {port.name: port for port in ports}
        self.axes: dict[str, list[tuple[str, int]]] = {}
        """Key that may be given → the axes that it names."""
        for port in ports:
            for axis in port.dynamic():
                place = (port.name, axis)
                self.axes.setdefault(port.key(axis), []).append(place)
                size = port.shape[axis]
                if isinstance(size, str) and size != port.key(axis):
                    self.axes.setdefault(size, []).append(place)
        self.known: dict[tuple[str, int], int] = {}
        self._by: dict[tuple[str, int], str] = {}

    def give_shape(self, name: str, shape: Shape) -> None:
        port = self.ports.get(name)
        if port is None:
            others = list(self.ports)
            known = f"its inputs: {', '.join(others[:8]) or 'none'}"
            raise ShapeError(f"the model has no input {name[:100]!r}", _nearest(name, others) or known)
        if len(shape) != len(port.shape):
            raise ShapeError(
                f"input {name} is {port.text() or 'a scalar'}, but {show_shape(shape) or 'a scalar'} was given",
                f"give {len(port.shape)} sizes",
            )
        for axis, size in enumerate(shape):
            fixed = port.shape[axis]
            if not isinstance(fixed, int):
                self._set((name, axis), size, f"the shape of {name}")
            elif fixed != size:
                raise ShapeError(f"input {name} is {port.text()}: its axis {axis} is {fixed}, not {size}")

    def give(self, key: str, size: int, what: str = "") -> None:
        places = self.axes.get(key)
        if places is None:
            sides = _sides(list(self.ports.values())) or "it has no inputs"
            raise ShapeError(
                f"the model has no dynamic dimension {key[:100]!r}: {sides}", self._known_keys(key)
            )
        distinct = sorted(set(places))
        if len(distinct) > 1 and PLACEHOLDER.match(key) is not None:
            axes = ", ".join(f"{name}[{axis}]" for name, axis in distinct[:4])
            raise ShapeError(f"several axes are called {key!r}", f"name each by its place: {axes}")
        for place in distinct:
            self._set(place, size, what or f"dim {key}")

    def _set(self, place: tuple[str, int], size: int, by: str) -> None:
        if not 0 <= size <= MAX_SIZE:
            raise ShapeError(
                f"{by} gives {place[0]}[{place[1]}] the size {size}", f"a size must be 0 to {MAX_SIZE}"
            )
        if self.known.setdefault(place, size) != size:
            raise ShapeError(
                f"{self._by[place]} says that {place[0]}[{place[1]}] is {self.known[place]}, but {by} says {size}",
                "leave one of them out",
            )
        self._by.setdefault(place, by)

    def _known_keys(self, key: str) -> str:
        ports = self.ports.values()
        keys = list(
            dict.fromkeys(port.symbol(axis) or port.key(axis) for port in ports for axis in port.dynamic())
        )
        if not keys:
            return "remove it: all sizes are fixed"
        return _nearest(key, keys) or f"there are: {', '.join(keys[:8])}"

    def spread_symbols(self) -> None:
        """Give an axis without a size the size of the other axes with its symbol, if they agree on one."""
        for key, places in self.axes.items():
            values = {self.known[place] for place in places if place in self.known}
            if len(values) == 1 and PLACEHOLDER.match(key) is None:
                for place in places:
                    self.known.setdefault(place, *values)

    def of(self, port: InputPort) -> Shape:
        return tuple(
            size if isinstance(size, int) else self.known[port.name, axis]
            for axis, size in enumerate(port.shape)
        )

    def example(self, port: InputPort) -> Shape:
        """The shape of a port, with usual sizes where sizes are unknown."""
        return tuple(
            size
            if isinstance(size, int)
            else self.known.get((port.name, axis), _usual(port, axis, self.ports))
            for axis, size in enumerate(port.shape)
        )


def _usual(port: InputPort, axis: int, others: Collection[str]) -> int:
    """A size for an example: a piece of sound if there is a rate input, else by symbol, else by position in an image or a sequence."""
    symbol = port.symbol(axis)
    if axis == len(port.shape) - 1 and len(port.shape) < 3 and RATES.intersection(others):
        return SOUND
    for pattern, size in USUAL:
        if symbol is not None and pattern.search(symbol):
            return size
    sides = list(port.shape)
    rank = len(sides)
    if rank == 4 and axis > 0:
        last = sides[3] in IMAGE_CHANNELS and sides[1] not in IMAGE_CHANNELS
        return 3 if axis == (3 if last else 1) else 224
    return 128 if axis == 1 and rank in (2, 3) else 1 if axis == 0 and rank > 1 else 16


# -- the batch ---------------------------------------------------------------------------------------------------------------


def _of_state(port: InputPort, axis: int) -> bool:
    """Whether this is the nameless second axis of a recurrent state: [layers, batch, width]."""
    nameless = (
        axis == 1 and len(port.shape) == 3 and not isinstance(port.shape[1], int) and port.symbol(1) is None
    )
    return nameless and STATE.search(port.name) is not None


def _default_batch(ports: Sequence[InputPort]) -> Iterator[tuple[InputPort, int]]:
    """Axes that surely are the batch: with a batch symbol, or nameless and the first of several."""
    for port in ports:
        for axis in port.dynamic():
            symbol = port.symbol(axis)
            if symbol is None:
                if _of_state(port, axis) or (axis == 0 and len(port.shape) > 1):
                    yield port, axis
            elif BATCH.match(symbol) and (axis == 0 or "batch" in symbol.lower()):
                yield port, axis


def _batch_axes(ports: Sequence[InputPort], named: str | None, batch: int) -> list[str]:
    """Keys of the batch axes, which will get the batch's size. Raises `ShapeError` if the batch is fixed at another size, or ambiguous."""
    if named is not None:
        keys = {
            key for port in ports for axis in port.dynamic() for key in (port.key(axis), port.shape[axis])
        }
        if named not in keys:
            known = [port.symbol(axis) or port.key(axis) for port in ports for axis in port.dynamic()]
            there = ", ".join(dict.fromkeys(known[:8])) or "none"
            raise ShapeError(
                f"batch_dim {named[:100]!r} is not a dynamic dimension of the model's inputs",
                f"there are: {there}",
            )
        return [named]
    symbols, nameless, others = list[str](), list[str](), list[str]()
    for port in ports:
        for axis in port.dynamic():
            symbol = port.symbol(axis)
            if axis != 0 and not _of_state(port, axis):
                continue
            if symbol is None:
                nameless.append(port.key(axis))
            elif BATCH.match(symbol):
                symbols.append(symbol)
            elif not any(pattern.search(symbol) for pattern, _ in USUAL):
                others.append(symbol)
    if not symbols and len(set(others)) > 1:
        named_others = ", ".join(dict.fromkeys(others))
        raise ShapeError(f"several dimensions could be the batch: {named_others}", "name it: batch_dim")
    flat = {port.key(0) for port in ports if len(port.shape) == 1}
    full = [key for key in nameless if key not in flat]
    # a flat, nameless input may also be a sequence: it counts as the batch only if nothing else can be
    found = list(dict.fromkeys([*(symbols or others), *full])) or nameless
    if not found:
        _refuse_fixed(ports, batch)
    return found


def _refuse_fixed(ports: Sequence[InputPort], batch: int) -> None:
    """Raise `ShapeError` unless the fixed first axes have this size."""
    firsts = {port.name: port.shape[0] for port in ports if len(port.shape) > 1}
    sizes = set(firsts.values())
    if firsts and sizes == {batch}:
        return
    text = ", ".join(f"{name} begins with {size}" for name, size in list(firsts.items())[:4])
    hint = "export it with a dynamic first dimension, or name one by batch_dim"
    if len(sizes) == 1:
        hint += f", or give this model batch: {[*sizes]}"
    raise ShapeError(
        f"the batch of the model is fixed and cannot be {batch}" + (f" ({text})" if text else ""), hint
    )
