"""The first inputs on which a model runs, and the message if there are none."""

from __future__ import annotations

import pytest

from drivers.contract.base import Unfit, Unshaped, WorkOrder, WrongUnit
from drivers.inputs.feeds import Shapes, find_runnable
from drivers.inputs.synthetic import Input

INPUT = Input("x", "float", ("batch", 8))


@pytest.mark.parametrize(
    ("order", "failure", "raised", "text"),
    [
        (
            WorkOrder("m", "u", batch=3),
            Unfit("no"),
            Unshaped,
            "it failed with x 3×8: no; if these sizes are wrong",
        ),
        (WorkOrder("m", "u"), Unfit("no"), Unfit, "no"),
        (WorkOrder("m", "u", batch=3), WrongUnit("no such locale here"), WrongUnit, "no such locale here"),
    ],
)
def test_what_does_not_run_is_laid_to_chosen_sizes_only_where_nothing_else_is_known(
    order: WorkOrder, failure: Unfit, raised: type[Unfit], text: str
) -> None:
    def attempt(shapes: Shapes, bound: int) -> None:
        raise failure

    with pytest.raises(Unfit, match=text) as caught:
        find_runnable(order, [INPUT], attempt)
    assert type(caught.value) is raised
