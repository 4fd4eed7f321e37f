"""Operators by type and provider, from what the runtime reports about a session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from drivers.contract.base import OperatorReport
from drivers.inputs.synthetic import Input
from drivers.onnx import session as edge
from drivers.onnx.operators import (
    AssignedNode,
    KernelCall,
    SessionFacts,
    read_profile,
    reasons,
    self_times,
    use_of_operators,
)
from drivers.onnx.profile import profile
from drivers.onnx.runner import Runner
from drivers.onnx.units import CPU, ProviderPlacement
from tests.drivers.onnx_models import BOOL, FLOAT, INT64, OnnxModels, helper, node, value

CUDA = "CUDAExecutionProvider"
MISSING = "[I:onnxruntime:, GetCapability] CUDA kernel not found in registries for Op type: Gelu node name: "
FORCED = (
    "[I:onnxruntime:, GetCpuPreferredNodes] ORT optimization- Force fallback to CPU execution for node: /c/Gather "
    "because the CPU execution path is deemed faster than overhead involved with execution on other EPs"
)
LOG = "\n".join([f"{MISSING}/a/Gelu", f"{MISSING}/a/Gelu", f"{MISSING}/b/Gelu", FORCED])


def event(name: str, provider: str, op: str, began: int, took: int) -> dict[str, Any]:
    args = {"op_name": op, "provider": provider}
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": began, "dur": took, "args": args}


def test_only_the_last_inference_of_a_profile_counts() -> None:
    events = [
        event("a", CPU, "Conv", 10, 900),
        {"cat": "Session", "name": "model_run", "ts": 5, "dur": 1000},
        event("a", CPU, "Conv", 2010, 90),
        {"cat": "Session", "name": "model_run", "ts": 2005, "dur": 100},
    ]
    assert read_profile(json.dumps(events)) == (KernelCall("a", "Conv", CPU, 2010, 90),)


def test_a_loop_takes_what_its_body_does_not() -> None:
    calls = (
        KernelCall("loop", "Loop", CPU, 0, 100),
        KernelCall("in", "MatMul", CPU, 10, 30),
        KernelCall("in", "MatMul", CPU, 40, 50),
        KernelCall("inner", "If", CPU, 41, 20),
        KernelCall("after", "Relu", CPU, 100, 5),
    )
    assert [own for _, own in self_times(calls)] == [20, 30, 30, 20, 5]
    (matmul,) = (one for one in use_of_operators(SessionFacts(calls), CPU) if one.op == "MatMul")
    assert (matmul.ran, matmul.ns) == (1, 60_000)


def test_what_fell_back_has_the_reason_of_the_log() -> None:
    assigned = [
        AssignedNode("/a/Gelu", "Gelu", "com.microsoft", CPU),
        AssignedNode("/b/Gelu", "Gelu", "com.microsoft", CPU),
        AssignedNode("/c/Gather", "Gather", "", CPU),
        AssignedNode("/d/Gather", "Gather", "", CUDA),
        AssignedNode("/e/Conv", "Conv", "", CUDA),
        AssignedNode("/f/Loop", "Loop", "", CPU),
    ]
    calls = tuple(
        KernelCall(one.name, one.op, one.provider, 10 * at, 5 + at) for at, one in enumerate(assigned)
    )
    uses = {
        (one.op, one.provider): one
        for one in use_of_operators(SessionFacts(calls, tuple(assigned), LOG), CUDA, issued=True)
    }
    assert uses["Gelu", CPU] == OperatorReport(
        "Gelu", CPU, 2, 2, 11_000, False, "2 × CUDA has no kernel for its version or types", "com.microsoft"
    )
    assert uses["Gather", CPU].why == "1 × the runtime considers the CPU faster for these"
    assert uses["Gather", CUDA].why == uses["Loop", CPU].why == ""
    assert [key for key, one in uses.items() if one.issued] == [("Conv", CUDA), ("Gather", CUDA)]


def test_a_log_in_other_words_gives_no_reason() -> None:
    assert reasons("CUDA does not like Gelu\n[I] node placements", [AssignedNode("a", "Gelu", "", CPU)]) == {}


def test_what_a_provider_compiled_is_one_kernel_and_its_nodes_keep_their_names() -> None:
    coreml = "CoreMLExecutionProvider"
    assigned = (AssignedNode("a", "Conv", "", coreml), AssignedNode("b", "Relu", "", coreml))
    calls = (KernelCall("CoreML_17_1", "CoreML", coreml, 0, 7),)
    text = json.dumps([event("CoreML_1726_1", coreml, "CoreML_1726_1", 0, 7)])
    assert read_profile(text)[0].op == "CoreML"
    uses = use_of_operators(SessionFacts(calls, assigned), coreml)
    assert [(one.op, one.nodes, one.ran, one.ns) for one in uses] == [
        ("CoreML", 0, 1, 7000),
        ("Conv", 1, 0, None),
        ("Relu", 1, 0, None),
    ]


def test_a_real_loop_is_taken_apart(models: OnnxModels) -> None:
    body = helper.make_graph(
        [node("Identity", ["c"], ["c2"]), node("Exp", ["v"], ["v2"])],
        "body",
        [value("i", INT64, []), value("c", BOOL, []), value("v", FLOAT, [1])],
        [value("c2", BOOL, []), value("v2", FLOAT, [1])],
    )
    path = models.put(
        "loop",
        [node("Loop", ["three", "yes", "x"], ["y"], body=body)],
        [value("x", FLOAT, [1])],
        [value("y", FLOAT, [1])],
        helper.make_tensor("yes", BOOL, [], [True]),
        helper.make_tensor("three", INT64, [], [3]),
    )
    feeds = {"x": np.zeros(1, np.float32)}

    def infer(options: Any) -> Any:
        session = edge.open_session(path, ProviderPlacement(CPU), options)
        runner = Runner(session, feeds, (Input("x", "float", (1,)),))
        runner.first()
        runner.first()
        return session

    facts = profile(infer, edge.options(1, optimise=True))
    assert sum(call.op == "Exp" for call in facts.calls) == 3  # not six: the first inference is left out
    uses = {one.op: one for one in use_of_operators(facts, CPU)}
    assert uses["Exp"].ran == uses["Loop"].ran == 1
    whole = next(call.took_us for call in facts.calls if call.op == "Loop")
    assert sum(one.ns or 0 for one in uses.values()) <= whole * 1000
    assert Path(path).exists()
