"""Models that are broken, hostile or endless: each task fails for its own reason, the model beside it is measured, and the workers stay
well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.real.lab import Lab, campaign, until

UNIT = "CPU (ONNX)"
REASONS = {
    "truncated": ("broken-model", "corrupt or cut short"),
    "corrupt": ("broken-model", "corrupt or cut short"),
    "custom_op": ("broken-model", "ours:Frobnicate"),
    "endless": ("timed-out", "limit of 2 s"),
    "eater": ("out-of-memory", "memory"),
    "outsider": ("broken-model", "weights in another file"),
}


def graph(path: Path, nodes: list[Any], *, initializers: tuple[Any, ...] = (), opset: int = 17) -> Path:
    """A model with an input of four floats, and the output `y`."""
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        initializer=list(initializers),
    )
    model = helper.make_model(
        made, opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("ours", 1)]
    )
    model.ir_version = 9
    path.write_bytes(model.SerializeToString())
    return path


def good(path: Path) -> Path:
    return graph(path, [helper.make_node("Relu", ["x"], ["y"])])


def truncated(path: Path) -> Path:
    weights = helper.make_tensor(
        "w", TensorProto.FLOAT, [4096], np.ones(4096, np.float32).tobytes(), raw=True
    )
    sums = [
        helper.make_node("ReduceSum", ["w"], ["s"], keepdims=0),
        helper.make_node("Add", ["x", "s"], ["y"]),
    ]
    graph(path, sums, initializers=(weights,))
    path.write_bytes(path.read_bytes()[:-900])
    return path


def corrupt(path: Path) -> Path:
    good(path)
    data = bytearray(path.read_bytes())
    data[8:40] = bytes(byte ^ 0xA5 for byte in data[8:40])
    path.write_bytes(data)
    return path


def custom_op(path: Path) -> Path:
    return graph(path, [helper.make_node("Frobnicate", ["x"], ["y"], domain="ours")])


def endless(path: Path) -> Path:
    """A Loop whose condition stays true, for 2^62 rounds."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Sin", ["v"], ["w"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, [4]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [4]),
        ],
    )
    many = helper.make_tensor("many", TensorProto.INT64, [], [2**62])
    yes = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    return graph(
        path, [helper.make_node("Loop", ["many", "yes", "x"], ["y"], body=body)], initializers=(many, yes)
    )


def eater(path: Path) -> Path:
    """A model that expands its four numbers to 32 GiB."""
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [2**31, 4])
    return graph(path, [helper.make_node("Expand", ["x", "shape"], ["y"])], initializers=(shape,))


def outsider(path: Path) -> Path:
    """A model whose weights are declared to be in /etc/passwd."""
    weights = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    weights.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "/etc/passwd"), ("offset", "0"), ("length", "16")):
        weights.external_data.add(key=key, value=value)
    return graph(path, [helper.make_node("Add", ["x", "w"], ["y"])], initializers=(weights,))


def test_each_bad_model_fails_with_its_reason_and_the_good_one_is_measured(lab: Lab, tmp_path: Path) -> None:
    makers = (good, truncated, corrupt, custom_op, endless, eater, outsider)
    models = [make(tmp_path / f"{make.__name__}.onnx") for make in makers]
    file = campaign(
        tmp_path, "bad-models", models, units=[UNIT],
        measure={"runs": 3, "loads": 1, "warmup": 1}, timeouts={"run": "2s"}, retry={"attempts": 2, "backoff": "100ms"},
    )  # fmt: skip
    done = lab.submit("ada", file)
    assert done.code == 1, done
    rows = {row["FileName"].removesuffix(".onnx"): row for row in done.json()["results"]}
    assert rows.keys() == {make.__name__ for make in makers}
    assert rows["good"]["Status"] == "Complete"
    assert rows["good"]["InferenceMsMedian"] > 0
    for name, (reason, words) in REASONS.items():
        row = rows[name]
        assert (row["Status"], row["Reason"]) == ("Failed", reason), row
        assert words in row["Detail"], row
        assert "root:" not in row["Detail"]
        assert "\n" not in row["Detail"]
        assert row["InferenceMsMedian"] is None
    until(lambda: states(lab) == {"one": "active", "two": "active"}, "both workers are well")


def states(lab: Lab) -> dict[str, str]:
    """The state that each worker reports."""
    observed = lab.run("ada", "peers", "--gate", lab.gate, "--json")
    assert observed.code == 0, observed
    return {peer["name"]: peer["state"] for peer in observed.json()["peers"]}
