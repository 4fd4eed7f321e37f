"""Which dimension of a model's inputs is the batch, and its size.

It is the dynamic first dimension of the inputs: among several, the one with a symbol like `batch`; if none has one and they differ, the
campaign must name it (`batch_dim`). The nameless second dimension of a recurrent state belongs to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drivers.contract.base import Unfit, WorkOrder
from drivers.inputs.made import BATCH, BY_NAME, Input, is_batch_of_state


def dims_of(order: WorkOrder, inputs: Sequence[Input]) -> Mapping[str, int]:
    """`order.dims` with the order's batch. Raises `Unfit` for a model with a batch that is fixed at another size, or ambiguous."""
    if order.batch is None:
        return order.dims
    keys = _keys(inputs, order.batch_dim)
    if not keys:
        _refuse_fixed(inputs, order.batch)
    for key in keys:
        size = order.dims.get(key, order.batch)
        if size != order.batch:
            raise Unfit(f"the batch is to be {order.batch}, but dims says {key!r} is {size}: leave one out")
    return {**order.dims, **dict.fromkeys(keys, order.batch)}


def failed_with(order: WorkOrder, why: Exception) -> Exception:
    """`why` nothing ran, with the order's batch: an inner shape may be fixed although the inputs are not."""
    if order.batch is None or not isinstance(why, Unfit):
        return why
    return type(why)(f"it does not run with a batch of {order.batch}: {why}")


def _keys(inputs: Sequence[Input], named: str | None) -> tuple[str, ...]:
    """The dynamic dimensions of the batch; none: it is fixed."""
    if named is not None:
        return (_named(inputs, named),)
    symbols, nameless, others = list[str](), list[str](), list[str]()
    for made in inputs:
        for axis, key in enumerate(made.axes()):
            if isinstance(key, int) or not (axis == 0 or is_batch_of_state(made, axis)):
                continue
            if key == f"{made.name}[{axis}]":
                nameless.append(key)
            elif BATCH.search(key):
                symbols.append(key)
            elif not any(pattern.search(key) for pattern, _ in BY_NAME):
                others.append(key)
    flat = {f"{made.name}[0]" for made in inputs if len(made.shape) == 1}
    full = [key for key in nameless if key not in flat]
    shown = symbols or others
    if not symbols and len(set(others)) > 1:
        raise Unfit(
            f"several dimensions could be the batch: {_listed(others)}; name it in the campaign: batch_dim"
        )
    # a flat input without a name may be a sequence as well: it is the batch only where nothing else can be
    return tuple(dict.fromkeys([*shown, *full] or nameless))


def _named(inputs: Sequence[Input], named: str) -> str:
    """The dimension of that symbol, or `input[axis]`."""
    dynamic = list[str]()
    for made in inputs:
        for axis, key in enumerate(made.axes()):
            if isinstance(key, int):
                continue
            if named in (key, f"{made.name}[{axis}]"):
                return key
            dynamic.append(key)
    options = _listed(dynamic) if dynamic else "none"
    raise Unfit(f"batch_dim {named!r} is no dynamic dimension of this model's inputs; there are: {options}")


def _refuse_fixed(inputs: Sequence[Input], batch: int) -> None:
    """Raise `Unfit` unless the fixed first dimension has this size."""
    firsts = {made.name: made.shape[0] for made in inputs if len(made.shape) > 1}
    if firsts and set(firsts.values()) == {batch}:
        return
    text = ", ".join(f"{name!r} begins with {size}" for name, size in list(firsts.items())[:4])
    raise Unfit(
        f"a batch of {batch} is asked for, but no input of this model has a batch of its own"
        + (f": {text}" if text else "")
        + "; export it with a dynamic first dimension, or name one by batch_dim"
    )


def _listed(keys: Sequence[str]) -> str:
    return ", ".join(repr(key) for key in list(dict.fromkeys(keys))[:8])
