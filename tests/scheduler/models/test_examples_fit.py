"""Data that do not fit an ONNX model are reported before any device is asked, in one line with the right form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protocol.errors import CampaignError
from protocol.formats.onnx import OnnxGraph
from protocol.formats.shapes import InputPort
from scheduler.campaign.load import parse_campaign
from scheduler.models.describe import describe_models
from scheduler.models.examples_fit import UNKNOWN, class_count
from tests.tiny_onnx import tiny_onnx

Shape = tuple[int | str, ...]


def described(folder: Path, shape: Shape, samples: np.ndarray, labels: list[int], metrics: str = "") -> None:
    (folder / "m.onnx").write_bytes(tiny_onnx(shape=shape))
    np.savez(folder / "data.npz", x=samples, labels=np.array(labels))
    text = "campaign: t\nunits: [CPU (ONNX), CPU (OpenVINO)]\nmodels:\n - path: m.onnx\n"
    text += f"   evaluate: {{task: classification, data: data.npz{metrics}}}\n"
    describe_models(parse_campaign(text.encode(), "c.yaml"), folder)


@pytest.mark.parametrize(
    ("shape", "samples", "why", "hint"),
    [
        (
            (1, 4),
            np.zeros((2, 5), "float32"),
            "example 1 is 1×5, but input 'x' takes 1×4",
            "give an array of N×4;",
        ),
        (("N", 4), np.zeros((2, 4, 1), "float32"), "example 1 is 1×4×1, but input 'x' takes N×4", "N×4;"),
        (
            (1, 3, 2, 2),
            np.zeros((2, 2, 2, 3), "float32"),
            "example 1 is 1×2×2×3, but input 'x' takes 1×3×2×2",
            "its axes are in another order: numpy.transpose(x, (0, 3, 1, 2))",
        ),
        (
            (8, 4),
            np.zeros((8, 4), "float32"),
            "example 1 is 1×4, but input 'x' takes 8×4",
            "export the model with a batch of 1, or with a dynamic one",
        ),
    ],
)
def test_a_sample_of_another_shape_is_told_with_the_right_one(
    tmp_path: Path, shape: Shape, samples: np.ndarray, why: str, hint: str
) -> None:
    with pytest.raises(CampaignError) as error:
        described(tmp_path, shape, samples, [0] * len(samples))
    assert error.value.what == f"c.yaml:4: model 'm.onnx' cannot be evaluated: {why}"
    assert hint in str(error.value.hint)


def test_a_sample_of_another_type_is_told_and_one_that_is_converted_is_not(tmp_path: Path) -> None:
    for kind in ("float64", "float16", "int64", "uint8", "bool"):
        described(tmp_path, (1, 4), np.zeros((2, 4), kind), [0, 1])
    graph = tiny_onnx()
    whole = graph.replace(b"\x08\x01\x12", b"\x08\x07\x12")  # its elements are int64
    assert whole != graph
    (tmp_path / "m.onnx").write_bytes(whole)
    text = "campaign: t\nunits: [CPU (ONNX)]\nmodels: [{path: m.onnx, evaluate: {task: classification, data: data.npz}}]\n"
    np.savez(tmp_path / "data.npz", x=np.zeros((2, 4), "float32"), labels=np.array([0, 1]))
    with pytest.raises(CampaignError, match="example 1 is float32, but input 'x' takes int64") as error:
        describe_models(parse_campaign(text.encode(), "c.yaml"), tmp_path)
    assert "x.astype(numpy.int64)" in str(error.value.hint)


def test_a_label_beyond_the_models_classes_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        CampaignError, match="the label of example 2 is 4, but the model's output has 4 classes"
    ) as error:
        described(tmp_path, (1, 4), np.zeros((2, 4), "float32"), [3, 4])
    assert error.value.hint == "labels are indices of classes, 0 to 3: the first class is 0"
    with pytest.raises(CampaignError, match="top5 needs 6 classes or more, but the model's output has 4"):
        described(tmp_path, (1, 4), np.zeros((2, 4), "float32"), [3, 2], ", metrics: [accuracy, top5]")


def test_inputs_by_other_names_and_texts_are_told(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(tiny_onnx())
    np.savez(tmp_path / "data.npz", a=np.zeros((2, 4)), b=np.zeros((2, 4)), labels=np.array([0, 1]))
    form = "campaign: t\nunits: [CPU (ONNX)]\nmodels: [{path: m.onnx, evaluate: {task: %s}}]\n"
    for task, why in (
        ("classification, data: data.npz", "example 1 gives a, b, but the model's inputs are x"),
        ("summarisation, metrics: [wer]", "its examples are texts"),
    ):
        with pytest.raises(CampaignError, match=why):
            describe_models(parse_campaign((form % task).encode(), "c.yaml"), tmp_path)


@pytest.mark.parametrize(
    ("outputs", "classes"),
    [
        ((InputPort("y", (1, 1000)),), 1000),
        ((InputPort("y", ("N", 10)),), 10),
        ((InputPort("y", (1, 10, 1, 1)),), 10),
        ((InputPort("boxes", (1, 100, 4)), InputPort("classes", (1, 7))), 7),
        ((InputPort("a", (1, "classes")), InputPort("y", (1, 7))), UNKNOWN),
        ((InputPort("boxes", (1, 100, 4)), InputPort("count", ())), None),
        (None, UNKNOWN),
    ],
)
def test_classes_are_counted_where_accuracy_would_look(
    outputs: tuple[InputPort, ...] | None, classes: int | None
) -> None:
    assert class_count(OnnxGraph((), 1, outputs=outputs)) == classes


def test_a_metric_of_texts_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(
        CampaignError, match="metric 'rouge' scores texts, but an ONNX model answers with tensors"
    ) as error:
        described(tmp_path, (1, 4), np.zeros((2, 4), "float32"), [3, 2], ", metrics: [accuracy, rouge]")
    assert "remove rouge; metrics for tensors: accuracy, drift, top5" in error.value.hint
