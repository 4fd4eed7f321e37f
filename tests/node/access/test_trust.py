"""Models that carry programs: accepted from people whom the device's owner knows, never from strangers."""

from __future__ import annotations

from typing import Any

import pytest

from node.run.runner import work_order
from protocol.formats.model_files import may_run_code
from protocol.messages.work import Denied, Granted
from protocol.values.task import Measure, Model
from protocol.words import Reason

TORCH = "CPU (Torch)"


@pytest.mark.parametrize("name", ["net.pt", "net.PT2", "net.pth", "a.b.ts", "weights.bin"])
def test_names_of_formats_that_carry_programs_are_known_on_torch_units_alone(name: str) -> None:
    assert may_run_code(TORCH, name)
    assert not may_run_code("CPU (ONNX)", name)


def named(hand: Any, name: str) -> Model:
    return hand.task().model.model_copy(update={"name": name})


async def test_a_stranger_is_refused_a_program_with_a_line_before_anything_is_fetched(world: Any) -> None:
    eve = world.scheduler()
    world.device.go.set()
    await world.start(accept_anyone=True)
    link = await world.link(eve)
    answer = await link.ask(eve.commit(eve.task(unit=TORCH, model=named(eve, "net.pt2"))), Denied)
    assert answer.reason is Reason.NOT_ALLOWED
    assert "contain programs" in answer.detail
    assert "net.pt2" in answer.detail
    beside = (named(eve, "beside.pt2"),)
    other = await link.ask(eve.commit(eve.task(3, unit=TORCH, beside=beside)), Denied)
    assert "beside.pt2" in other.detail
    apart = await link.ask(eve.commit(eve.task(4, beside=beside, beside_units=(TORCH,))), Denied)
    assert "beside.pt2" in apart.detail
    nowhere = await link.ask(
        eve.commit(eve.task(5, beside=(named(eve, "m.onnx"),), beside_units=("GPU (X)",))), Denied
    )
    assert nowhere.reason is Reason.DOES_NOT_FIT
    assert "unit GPU (X): this device has" in nowhere.detail
    assert answer.unmet  # so the worker refuses this task, not its scheduler
    # the driver looks again at a model with a harmless name, and learns whose it is
    granted = await link.ask(eve.commit(eve.task(2)), Granted)
    assert granted.lease
    await eve.record()
    assert world.device.launches[0].order.trusted is False


async def test_the_owner_and_those_let_in_are_trusted(world: Any) -> None:
    bob = world.scheduler()
    world.device.go.set()
    await world.start(allow=(bob.identity.peer_id,), accept_anyone=True)
    for count, hand in enumerate((world.ann, bob), start=1):
        link = await world.link(hand)
        await link.ask(hand.commit(hand.task(count)), Granted)
        await hand.record()
        assert world.device.launches[-1].order.trusted is True


async def test_declared_inputs_reach_the_driver(world: Any) -> None:
    task = world.ann.task(measure=Measure(inputs={"x": "float32[batch, 3]"}))
    order = work_order(task, "/m", stranger=True)
    assert (order.inputs, order.trusted) == ({"x": "float32[batch, 3]"}, False)
