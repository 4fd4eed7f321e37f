"""Labelled samples, and damaged or malicious data files, each refused with one clear line."""

from __future__ import annotations

import io
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from results.scoring.arrays import read_arrays
from results.scoring.evaluation import read_examples
from results.scoring.plugins import find_task

X = np.arange(12, dtype=np.float32).reshape(3, 4)
LABELS = np.array([2, 0, 1])


def npy(array: Any, **more: Any) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asanyarray(array), **more)
    return stream.getvalue()


def head(shape: tuple[int, ...], dtype: str = "<f4", after: bytes = b"") -> bytes:
    """The header of an array, claiming this shape, followed by `after`."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue() + after


def packed(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_each_sample_keeps_a_batch_axis_of_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=X, labels=LABELS)
    examples = read_examples(find_task("classification"), tmp_path / "d.npz", {})
    assert [example.reference for example in examples] == [2, 0, 1]
    for at, example in enumerate(examples):
        assert isinstance(example.inputs, np.ndarray)
        assert np.array_equal(example.inputs, X[at : at + 1])


def test_several_inputs_keep_their_names(tmp_path: Path) -> None:
    np.savez_compressed(
        tmp_path / "d.npz", ids=X.astype(np.int64), mask=X > 1, labels=LABELS.astype(np.uint8)
    )
    example = read_examples(find_task("classification"), tmp_path / "d.npz", {})[1]
    assert isinstance(example.inputs, dict)
    assert {name: (array.shape, str(array.dtype)) for name, array in example.inputs.items()} == {
        "ids": ((1, 4), "int64"),
        "mask": ((1, 4), "bool"),
    }
    assert type(example.reference) is int


def test_arrays_in_any_order_read_as_numpy_reads_them(tmp_path: Path) -> None:
    arrays = {"f": np.asfortranarray(X), "big": X.astype(">f8"), "none": np.zeros((0, 3)), "one": np.array(5)}
    np.savez(tmp_path / "d.npz", **arrays)
    read = read_arrays(tmp_path / "d.npz")
    assert read.keys() == arrays.keys()
    for name, array in arrays.items():
        assert np.array_equal(read[name], array)
        assert read[name].shape == array.shape
        assert read[name].dtype.isnative


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"x": X}, "d.npz has no array 'labels': numpy.savez"),
        ({"labels": LABELS}, "no array for the model's input: numpy.savez"),
        ({"x": X, "labels": LABELS[:2]}, "array 'x' of d.npz has 3 samples, where others have 2"),
        ({"x": X, "y": X[:1], "labels": LABELS}, "array 'y' of d.npz has 1 samples, where others have 3"),
        ({"x": X, "labels": np.array([0, np.nan, 1])}, r"labels of d.npz are \[3\] of float64"),
        ({"x": X, "labels": LABELS.reshape(3, 1)}, r"labels of d.npz are \[3, 1\] of int64"),
        ({"x": X, "labels": LABELS - 1}, "a label -1: labels are indices of classes, from 0"),
        ({"x": X * np.nan, "labels": LABELS}, "array 'x' of d.npz has NaN in it"),
        ({"x": np.array(1.0), "labels": LABELS}, "array 'x' of d.npz has no samples"),
        ({"x": X[:0], "labels": LABELS[:0]}, "array 'x' of d.npz has no samples"),
        ({"x": X.astype(complex), "labels": LABELS}, "array 'x' is complex128: only whole numbers"),
        ({"x": np.array(["a"] * 3), "labels": LABELS}, "array 'x' is <U1: only whole numbers"),
    ],
)
def test_data_that_is_no_labelled_samples(tmp_path: Path, arrays: dict[str, Any], why: str) -> None:
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(ValueError, match=why) as failed:
        read_examples(find_task("classification"), tmp_path / "d.npz", {})
    assert "\n" not in str(failed.value)


def truncated(path: Path) -> None:
    np.savez(path, x=np.zeros(10_000), labels=LABELS)
    path.write_bytes(path.read_bytes()[:5000])


def damaged(path: Path) -> None:
    np.savez_compressed(path, x=np.random.default_rng(0).random(1000), labels=LABELS)
    content = bytearray(path.read_bytes())
    content[200:260] = bytes(60)
    path.write_bytes(content)


def locked(path: Path) -> None:
    content = bytearray(packed(path, {"x.npy": npy(X)}).read_bytes())
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)


class Harm:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        raise AssertionError("nothing of it may be run")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "d.npz: No such file"),
        (lambda path: path.mkdir(), "d.npz: Is a directory"),
        (lambda path: path.write_bytes(b""), "is not an .npz file"),
        (lambda path: path.write_bytes(pickle.dumps({"x": 1})), "is not an .npz file"),
        (lambda path: path.write_bytes(npy(X)), "is not an .npz file"),
        (truncated, "is not an .npz file, or is damaged"),
        (damaged, "array 'x' has no head|is damaged"),
        (locked, "is not an .npz file, or is damaged"),
        (
            lambda path: packed(path, {"x.npy": npy(np.array([{}], object), allow_pickle=True)}),
            "array 'x' holds Python objects, which are never loaded",
        ),
        (
            lambda path: packed(path, {"x.npy": pickle.dumps([1])}),
            "array 'x' has no header that NumPy can read",
        ),
        (lambda path: packed(path, {"x.npy": b"\x93NUMPY\x09\x00"}), "array 'x' has no head"),
        (lambda path: packed(path, {"x.npy": b"\x93NUMPY\x01\x00\x04\x00{(,\n"}), "array 'x' has no head"),
        (
            lambda path: packed(path, {"x.npy": b"\x93NUMPY\x01\x00\x70\x17" + b"(" * 6000}),
            "array 'x' has no head",
        ),
        (
            lambda path: packed(path, {"x.npy": head((10**12,), after=bytes(8))}),
            r"array 'x' is declared as \[1000000000000\] of float32, but has 8 bytes",
        ),
        (
            lambda path: packed(path, {"x.npy": head((-4, -1), after=bytes(16))}),
            r"is declared as \[-4, -1\] of float32",
        ),
        (lambda path: packed(path, {"x.npy": head((2,), "<f4", bytes(99))}), "but has 99 bytes"),
        (lambda path: packed(path, {"x.txt": b"hello"}), "'x.txt' in it is not an array"),
        (lambda path: packed(path, {".npy": npy(X)}), "'.npy' in it is not an array"),
        (
            lambda path: packed(path, {"x.npy": npy(X)}, zipfile.ZIP_LZMA),
            "is compressed by a method that NumPy does not use",
        ),
        (lambda path: packed(path, {f"a{n}.npy": b"" for n in range(257)}), "it has 257 arrays"),
        (lambda path: packed(path, {}), "it has 0 arrays"),
    ],
)
def test_a_hostile_file_costs_one_line(tmp_path: Path, make: Callable[[Path], Any], why: str) -> None:
    make(tmp_path / "d.npz")
    with pytest.raises(ValueError, match=why) as failed:
        read_arrays(tmp_path / "d.npz")
    assert str(failed.value).startswith("d.npz")
    assert "\n" not in str(failed.value)


def test_bits_that_flip_cost_one_line(tmp_path: Path) -> None:
    rng, path = random.Random(0), tmp_path / "d.npz"
    np.savez(path, x=X, labels=LABELS)
    whole = path.read_bytes()
    said = []
    for _ in range(300):
        content = bytearray(whole)
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        try:
            read_arrays(path)
        except ValueError as why:
            said.append(str(why))
    assert len(said) > 200
    assert [line for line in said if not line.startswith("d.npz") or "Invalid argument" in line] == []


def sized(path: Path, size: int, content: bytes) -> Path:
    """An archive whose directory entry claims this unpacked size for its array."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
        archive.filelist[0].file_size = size
    return path


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="its arrays exceed 512 MiB unpacked"):
        read_arrays(sized(tmp_path / "d.npz", 2**29 + 1, head((2**26,), "<f8")))
    with pytest.raises(ValueError, match=r"is not an .npz file, or is damaged"):
        read_arrays(sized(tmp_path / "d.npz", len(head((4,))) + 16, head((4,), after=bytes(2**20))))


def test_options_are_for_images(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=X, labels=LABELS)
    with pytest.raises(ValueError, match=r"takes no options for an .npz file"):
        read_examples(find_task("classification"), tmp_path / "d.npz", {"size": 3})
    with pytest.raises(ValueError, match=r"classification needs data: an .npz file with labels, or a folder"):
        read_examples(find_task("classification"), None, {})
