"""Small ONNX models generated on the spot, each for one question."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnx import TensorProto, helper

FLOAT, INT32, INT64, BOOL, STRING, FLOAT16, DOUBLE = (
    TensorProto.FLOAT,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.BOOL,
    TensorProto.STRING,
    TensorProto.FLOAT16,
    TensorProto.DOUBLE,
)
value = helper.make_tensor_value_info
node = helper.make_node


class OnnxModels:
    """Writes ONNX models to files and returns their paths."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(
        self, name: str, nodes: list[Any], inputs: list[Any], outputs: list[Any], *weights: Any, **extra: Any
    ) -> str:
        """Write one graph. `extra`: `domains` besides the standard one, and `metadata`."""
        graph = helper.make_graph(nodes, "graph", inputs, outputs, list(weights))
        domains = [
            helper.make_opsetid("", 17),
            *(helper.make_opsetid(one, 1) for one in extra.get("domains", ())),
        ]
        model = helper.make_model(graph, opset_imports=domains)
        model.ir_version = 9
        for key, text in extra.get("metadata", {}).items():
            model.metadata_props.add(key=key, value=text)
        path = self.folder / f"{name}.onnx"
        path.write_bytes(model.SerializeToString())
        return str(path)

    def nano(self, name: str = "nano", weight: float = 0.1) -> str:
        """An 8 × 8 matrix product."""
        weights = helper.make_tensor("w", FLOAT, [8, 8], [weight] * 64)
        return self.put(
            name,
            [node("MatMul", ["x", "w"], ["y"])],
            [value("x", FLOAT, [1, 8])],
            [value("y", FLOAT, [1, 8])],
            weights,
        )

    def deep(self, rank: int) -> str:
        """An input of rank `rank`."""
        shape = [1] * rank
        return self.put(
            "deep", [node("Identity", ["x"], ["y"])], [value("x", FLOAT, shape)], [value("y", FLOAT, shape)]
        )

    def endless(self) -> str:
        """A loop without a trip count whose condition stays true."""
        body = helper.make_graph(
            [node("Identity", ["c"], ["c2"]), node("Identity", ["v"], ["v2"])],
            "body",
            [value("i", INT64, []), value("c", BOOL, []), value("v", FLOAT, [1])],
            [value("c2", BOOL, []), value("v2", FLOAT, [1])],
        )
        yes = helper.make_tensor("yes", BOOL, [], [True])
        return self.put(
            "endless",
            [node("Loop", ["", "yes", "x"], ["y"], body=body)],
            [value("x", FLOAT, [1])],
            [value("y", FLOAT, [1])],
            yes,
        )

    def greedy(self) -> str:
        """Sixteen gibibytes of zeros from a file of a hundred bytes."""
        shape = helper.make_tensor("shape", INT64, [2], [65536, 65536])
        nodes = [
            node("ConstantOfShape", ["shape"], ["big"]),
            node("ReduceSum", ["big"], ["sum"], keepdims=0),
            node("Add", ["x", "sum"], ["y"]),
        ]
        return self.put("greedy", nodes, [value("x", FLOAT, [1])], [value("y", FLOAT, [1])], shape)

    def custom(self) -> str:
        """An operator of a third party's library."""
        return self.put(
            "custom",
            [node("Thing", ["x"], ["y"], domain="com.acme")],
            [value("x", FLOAT, [1])],
            [value("y", FLOAT, [1])],
            domains=["com.acme"],
        )

    def external(self, location: str) -> str:
        """A model whose weights are in another file."""
        weights = TensorProto(name="w", data_type=FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
        weights.external_data.add(key="location", value=location)
        return self.put(
            "external",
            [node("Add", ["x", "w"], ["y"])],
            [value("x", FLOAT, [4])],
            [value("y", FLOAT, [4])],
            weights,
        )

    def embedding(self) -> str:
        """Token ids that index a table of ten rows, with a mask."""
        table = helper.make_tensor("table", FLOAT, [10, 2], [0.5] * 20)
        nodes = [
            node("Gather", ["table", "input_ids"], ["rows"]),
            node("Cast", ["attention_mask"], ["mask"], to=FLOAT),
            node("Unsqueeze", ["mask", "last"], ["wide"]),
            node("Mul", ["rows", "wide"], ["y"]),
        ]
        last = helper.make_tensor("last", INT64, [1], [2])
        inputs = [
            value("input_ids", INT64, ["batch", "sequence"]),
            value("attention_mask", INT64, ["batch", "sequence"]),
        ]
        return self.put("embedding", nodes, inputs, [value("y", FLOAT, None)], table, last)

    def speech(self) -> str:
        """A float signal, a state and a scalar sample rate, as in voice detectors."""
        nodes = [
            node("Cast", ["sr"], ["rate"], to=FLOAT),
            node("Div", ["input", "rate"], ["scaled"]),
            node("ReduceSum", ["scaled"], ["sum"], keepdims=0),
            node("Add", ["state", "sum"], ["stateN"]),
        ]
        inputs = [
            value("input", FLOAT, ["batch", 576]),
            value("state", FLOAT, [2, "batch", 128]),
            value("sr", INT64, []),
        ]
        return self.put("speech", nodes, inputs, [value("stateN", FLOAT, None)])
