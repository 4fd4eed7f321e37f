"""Sizes of a program's inputs. A program says which inputs are dynamic, and their largest sizes, but not which of their axes are dynamic.
Pure."""

from __future__ import annotations

from collections.abc import Sequence

from drivers.contract.base import Unshaped, WorkOrder
from drivers.executorch.program import BOUNDED, STATIC, UNBOUNDED, ProgramTensor
from drivers.inputs.feeds import Shapes, shapes_of
from drivers.inputs.synthetic import Input
from protocol.formats.shapes import show_shape


def inputs_for(order: WorkOrder, tensors: Sequence[ProgramTensor]) -> tuple[Input, ...]:
    """The inputs for the order: an axis whose size the order gives is dynamic if its input is; all other axes have their largest size.

    Raises `Unshaped` for a size that the program cannot have.
    """
    inputs = tuple(
        Input(
            one.name,
            one.dtype,
            tuple(None if _is_given(order, one, axis) else size for axis, size in enumerate(one.sizes)),
        )
        for one in tensors
    )
    try:
        shapes = shapes_of(order, inputs)
    except Unshaped as why:
        if hint := _hint(tensors):
            raise Unshaped(f"{why}; {hint}") from why
        raise
    for one in tensors:
        for axis, (size, most) in enumerate(zip(shapes[one.name], one.sizes, strict=True)):
            if size > most and one.dynamism != UNBOUNDED:
                raise Unshaped(
                    f"input {one.name} is {show_shape(shapes[one.name])}, but the program takes at most {show_shape(one.sizes)}: "
                    f"its axis {axis} is at most {most}, not {size}"
                )
    return inputs


def _is_given(order: WorkOrder, one: ProgramTensor, axis: int) -> bool:
    if one.dynamism in (STATIC, UNBOUNDED):
        return one.dynamism == UNBOUNDED
    key, shape = f"{one.name}[{axis}]", order.shapes.get(one.name, ())
    if key in order.dims or key == order.batch_dim:
        return True
    if order.batch is not None and order.batch_dim is None and axis == 0:
        return True
    return len(shape) == len(one.sizes) and shape[axis] != one.sizes[axis]


def _hint(tensors: Sequence[ProgramTensor]) -> str:
    """How to give sizes of dynamic inputs; empty: all inputs are fixed."""
    open_ = [one for one in tensors if one.dynamism != STATIC]
    most = ", ".join(f"{one.name} at most {show_shape(one.sizes)}" for one in open_[:4])
    return (
        f"sizes can be given for: {most}; name an axis by its place, such as {open_[0].name}[0]"
        if open_
        else ""
    )


def larger(tensors: Sequence[ProgramTensor], shapes: Shapes) -> Shapes:
    """Shapes with each dynamic axis doubled, up to its largest size."""
    return {
        one.name: tuple(
            size if one.dynamism != BOUNDED else min(most, max(1, 2 * size))
            for size, most in zip(shapes[one.name], one.sizes, strict=True)
        )
        for one in tensors
    }


def sizes_note(tensors: Sequence[ProgramTensor], shapes: Shapes) -> str:
    """A note for the row on dynamic inputs; empty: all inputs are fixed."""
    open_ = [one for one in tensors if one.dynamism != STATIC]
    if not open_:
        return ""
    most = ", ".join(f"{one.name} {show_shape(one.sizes)}" for one in open_[:4])
    if all(shapes[one.name] == one.sizes for one in open_):
        return f"sizes: the program's largest ({most}); no others were given"
    return f"sizes: as given; the program takes up to {most} and does not say which axes are open"
