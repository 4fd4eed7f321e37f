"""A folder with an ONNX graph and its weights in a second file: from the user's disk over the network to a real inference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import trio
from onnx import TensorProto, helper, numpy_helper

from drivers.launch.launch import Launch, Zygote
from protocol.messages.work import Granted, Result
from protocol.values.record import Record
from protocol.values.task import Measure
from protocol.words import RunOutcome
from scheduler.campaign.load import parse_campaign
from scheduler.models.describe import describe_models
from scheduler.models.spool import spool

CAMPAIGN = b"campaign: t\nunits: [CPU (ONNX)]\nmodels: [net]\n"


def write(folder: Path) -> Path:
    """Write the model y = x · W, with W in a separate file."""
    weights = numpy_helper.from_array(np.ones((64, 8), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    folder.mkdir()
    onnx.save(
        model,
        str(folder / "net.onnx"),
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    return folder


async def test_a_graph_with_external_weights_is_sent_as_its_folder_and_really_runs(
    world: Any, tmp_path: Path
) -> None:
    folder = write(tmp_path / "net")
    assert sorted(path.name for path in folder.iterdir()) == ["net.onnx", "weights.bin"]
    path, model, _ = describe_models(parse_campaign(CAMPAIGN, "c.yaml"), tmp_path)["net"]
    assert path is not None
    world.ann.content = spool(path, model, tmp_path / "spool")
    with Zygote("onnx") as zygote:
        world.device.launch = lambda order, limits: Launch(order, limits, zygote)
        await world.start()
        link = await world.link()
        task = world.ann.task(model=model, measure=Measure(runs=5, loads=1, warmup=1, dims={"batch": 3}))
        await link.ask(world.ann.commit(task), Granted)
        with trio.fail_after(60):
            while not world.ann.count(Result):
                await trio.sleep(0.01)
        record: Record = await world.ann.record()
    assert (record.outcome, record.detail) == (RunOutcome.COMPLETE, "")
    assert record.model_sha256 == model.sha256
    assert record.ran is not None
    assert dict(record.ran.shapes) == {"x": (3, 64)}
