"""Images by class: the effect of each option, and damaged or malicious images."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from results.scoring.evaluation import read_examples
from results.scoring.images import form_of, resized_size
from results.scoring.plugins import find_task

TASK = find_task("classification")
RED, BLUE = (255, 0, 0), (0, 0, 255)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes: a red image 8 high and 4 wide with a blue row at its top, and two blue images."""
    for name in ("dog", "cat", ".hidden"):
        (tmp_path / name).mkdir()
    tall = Image.new("RGB", (4, 8), RED)
    tall.paste(BLUE, (0, 0, 4, 1))
    tall.save(tmp_path / "cat" / "a.png")
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "cat" / "._a.png").write_bytes(b"what a Mac leaves beside a.png")
    for name in ("b.bmp", "a.PNG"):
        Image.new("RGB", (4, 4), BLUE).save(tmp_path / "dog" / name)
    return tmp_path


def inputs(folder: Path, **options: Any) -> list[Any]:
    return [example.inputs for example in read_examples(TASK, folder, {"size": 4, **options})]


def test_classes_are_the_sorted_folders_unless_they_are_given(folder: Path) -> None:
    for classes, labels in (
        (None, [0, 1, 1]),
        (["dog", "cat"], [1, 0, 0]),
        (["bird", "dog", "cat"], [2, 1, 1]),
        (("cat", "bird", "dog"), [0, 2, 2]),
    ):
        options = {"size": 4, **({} if classes is None else {"classes": classes})}
        assert [example.reference for example in read_examples(TASK, folder, options)] == labels


def test_the_first_images_of_each_class_are_taken(folder: Path) -> None:
    examples = read_examples(TASK, folder, {"size": 4, "per_class": 1})
    assert [example.reference for example in examples] == [0, 1]
    with pytest.raises(ValueError, match="'per_class' is 0: it has to be a whole number"):
        inputs(folder, per_class=0)


def test_by_default_values_are_0_to_1_in_nchw(folder: Path) -> None:
    cat, dog, _ = inputs(folder)
    assert (cat.shape, cat.dtype) == ((1, 3, 4, 4), np.float32)
    assert (cat[0, 0] == 1).all()
    assert (cat[0, 1:] == 0).all()
    assert (dog[0, 2] == 1).all()


def test_mean_std_and_scale_are_of_each_channel(folder: Path) -> None:
    cat, *_ = inputs(folder, scale=1, mean=(100, 10, 0), std=[5, 2, 1], layout="nhwc")
    assert cat.shape == (1, 4, 4, 3)
    assert cat[0, 0, 0].tolist() == [31.0, -5.0, 0.0]
    assert inputs(folder, scale=2, mean=10, std=4)[0][0, :, 0, 0].tolist() == [125.0, -2.5, -2.5]


def test_colours_and_types(folder: Path) -> None:
    cat, *_ = inputs(folder, colours="bgr", dtype="uint8")
    assert cat.dtype == np.uint8
    assert cat[0, :, 0, 0].tolist() == [0, 0, 255]
    grey = inputs(folder, colours="grey", dtype="uint8", layout="nhwc")[0]
    assert grey.shape == (1, 4, 4, 1)
    assert set(grey.flatten()) == {76}  # 0.299 of red


def test_the_middle_is_cut_out_or_the_whole_is_stretched(folder: Path) -> None:
    assert (inputs(folder)[0][0, 2] == 0).all(), "the blue row is above the middle"
    assert inputs(folder, fit="stretch")[0][0, 2, 0, 0] > 0.2
    assert inputs(folder, size=[8, 4])[0].shape == (1, 3, 8, 4)
    assert inputs(folder, size=(8, 4))[0][0, 2, 0, 0] == 1
    assert inputs(folder, size=[2, 3], resize=100)[0].shape == (1, 3, 2, 3)


def test_resizing_to_more_cuts_out_less(folder: Path) -> None:
    image = Image.new("L", (8, 8), 0)
    image.paste(255, (0, 0, 8, 2))
    image.save(folder / "cat" / "a.png")
    whole, less = inputs(folder, colours="grey"), inputs(folder, colours="grey", resize=8)
    assert whole[0][0, 0, 0, 0] > 0.5
    assert less[0].max() == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "'size' has to be the model's height and width, up to 4096: size: 224, or"),
        ({"size": 0}, "'size' has to be"),
        ({"size": True}, "'size' has to be"),
        ({"size": [4]}, "'size' has to be"),
        ({"size": 4, "sizes": 4}, "no option 'sizes': did you mean 'size'"),
        ({"size": 4, "layout": "hwc"}, "'layout' is 'hwc': it has to be one of nchw, nhwc"),
        ({"size": 4, "mean": [1, 2]}, "'mean' is .1, 2.: it has to be 1 or 3 number"),
        ({"size": 4, "mean": "0.5"}, "'mean' is '0.5'"),
        ({"size": 4, "std": [1, 0, 1]}, "'std' contains 0"),
        ({"size": 4, "std": float("nan")}, "'std' is nan"),
        ({"size": 4, "scale": [1, 1]}, r"'scale' is \[1, 1\]: it has to be 1 number"),
        ({"size": 4, "colours": "grey", "mean": [1, 2, 3]}, "'mean' is"),
        ({"size": 4, "dtype": "uint8", "std": 2}, "'std' is only for dtype: float32"),
        ({"size": 4, "fit": "stretch", "resize": 8}, "'resize' is only for fit: crop"),
        ({"size": 4, "resize": 3}, "'resize' is 3: it has to be a whole number, 4 to 4096"),
        ({"size": 4, "classes": ["cat"]}, "'classes' has no 'dog', which is a folder: add it"),
        (
            {"size": 4, "classes": ["cat", "dgo"]},
            "'classes' has no 'dog', which is a folder: did you mean 'dgo'",
        ),
        ({"size": 4, "classes": ["cat", "dog", "cat"]}, "'classes' names a folder twice"),
        ({"size": 4, "classes": ["cat", 1]}, "'classes' has to list the folders in the order"),
        ({"size": 4, "classes": "cat"}, "'classes' has to list the folders in the order"),
    ],
)
def test_options_that_are_wrong(folder: Path, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why) as failed:
        read_examples(TASK, folder, options)
    assert "\n" not in str(failed.value)


def chunk(content: bytes) -> bytes:
    return struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content))


def png(width: int, height: int) -> bytes:
    """An image that claims this size."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (head, b"IDAT" + zlib.compress(bytes(100)), b"IEND")
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(chunk, parts))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "image 'a.png' of class 'cat' is not one of JPEG, PNG"),
        (b"hello", "is not one of JPEG, PNG, WEBP, BMP, or is damaged"),
        (b"GIF89a" + bytes(100), "is not one of JPEG, PNG"),
        (png(8001, 8000), "is 8001 x 8000: at most 64 million pixels"),
        (png(10_000, 10_000), "is 10000 x 10000: at most 64 million pixels"),
        (png(2**20, 2**20), "is damaged|at most 64 million pixels"),
        (png(100, 100), "is damaged or truncated"),
        (png(1, 1)[:20], "is damaged or truncated"),
        (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR" + bytes(5)), "is damaged or truncated"),
    ],
    ids=["empty", "text", "gif", "large", "larger", "bomb", "cut off", "cut in its head", "short head"],
)
def test_a_hostile_image_costs_one_line(folder: Path, content: bytes, why: str) -> None:
    (folder / "cat" / "a.png").write_bytes(content)
    with pytest.raises(ValueError, match=why) as failed:
        inputs(folder)
    assert "image 'a.png' of class 'cat'" in str(failed.value)
    assert "\n" not in str(failed.value)


def test_a_strip_that_would_be_huge_once_resized_is_refused(folder: Path) -> None:
    Image.new("1", (60_000, 1)).save(folder / "cat" / "a.png")
    with pytest.raises(
        ValueError, match="is 60000 x 1: at most 64 million pixels are allowed, also after resizing"
    ):
        inputs(folder, size=100)
    assert inputs(folder, size=100, fit="stretch")[0].shape == (1, 3, 100, 100)


def test_values_of_more_than_8_bits_are_not_cut(folder: Path) -> None:
    Image.fromarray(np.full((4, 4), 60_000, np.uint16)).save(folder / "cat" / "a.png")
    with pytest.raises(ValueError, match=r"has values of more than 8 bits \(I;16\): save it with 8 bits"):
        inputs(folder)


@pytest.mark.parametrize(
    ("size", "options", "resized"),
    [
        ((300, 500), {"size": 224, "resize": 256}, (256, 426)),
        ((500, 300), {"size": 224}, (373, 224)),
        ((7, 7), {"size": [192, 256]}, (256, 256)),
        ((107, 107), {"size": 224}, (224, 224)),
        ((400, 300), {"size": [192, 256], "resize": 200}, (266, 200)),
        ((400, 300), {"size": 32, "fit": "stretch"}, (32, 32)),
    ],
)
def test_the_size_before_the_middle_is_cut_out(
    size: tuple[int, int], options: dict[str, Any], resized: tuple[int, int]
) -> None:
    assert resized_size(size, form_of(options)) == resized


def test_other_formats_are_not_opened(folder: Path) -> None:
    Image.new("RGB", (4, 4), RED).save(folder / "cat" / "a.png", format="GIF")
    with pytest.raises(ValueError, match="is not one of JPEG, PNG, WEBP, BMP"):
        inputs(folder)


def test_a_folder_without_classes_or_images(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the folder has no subfolders: make one per class"):
        inputs(tmp_path)
    (tmp_path / "cat").mkdir()
    with pytest.raises(ValueError, match="there are no examples"):
        inputs(tmp_path)
