"""Turns images in one folder per class into a model's inputs, as the options say. Needs Pillow: pip install 'sark-node[images]'."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from results.scoring.options import numbers_option, only, whole_option, word_option
from results.scoring.plugins import Example
from swarm.base.text import did_you_mean, safe_text

if TYPE_CHECKING:
    import numpy as np

NEEDED: Final = "images need the package Pillow: pip install 'sark-node[images]'"
OPTIONS: Final = (
    "size",
    "resize",
    "fit",
    "layout",
    "colours",
    "dtype",
    "scale",
    "mean",
    "std",
    "classes",
    "per_class",
)
ENDINGS: Final = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
FORMATS: Final = ("JPEG", "PNG", "WEBP", "BMP")
MODES: Final = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
"""Pillow's modes with at most 8 bits per channel; transparency is dropped."""
MAX_SIDE: Final = 4096
MAX_PIXELS: Final = 64_000_000
CHANNELS: Final = {"rgb": 3, "bgr": 3, "grey": 1}


@dataclass(frozen=True, slots=True)
class ImageForm:
    """How an image becomes an input: resized, cropped, then (value × scale - mean) / std per channel."""

    height: int
    width: int
    shorter: int | None
    """Length of the shorter side before the centre crop; None: the smallest that covers the crop."""
    fit: str
    layout: str
    colours: str
    dtype: str
    scale: float
    mean: list[float]
    std: list[float]


def form_of(options: Mapping[str, Any]) -> ImageForm:
    """The form that the options describe. Raises `ValueError` with one line for wrong or missing options."""
    only(options, OPTIONS)
    size = options.get("size")
    sides: list[Any] = list(size) if isinstance(size, list | tuple) else [size, size]
    if len(sides) != 2 or not all(type(side) is int and 1 <= side <= MAX_SIDE for side in sides):
        raise ValueError(
            f"option 'size' has to be the model's height and width, up to {MAX_SIDE}: size: 224, or size: [192, 256]"
        )
    colours = word_option(options, "colours", CHANNELS, "rgb")
    fit = word_option(options, "fit", ("crop", "stretch"), "crop")
    dtype = word_option(options, "dtype", ("float32", "uint8"), "float32")
    shorter = whole_option(options, "resize", min(sides), MAX_SIDE)
    if dtype == "uint8" and (set_ := [name for name in ("scale", "mean", "std") if name in options]):
        raise ValueError(
            f"option {set_[0]!r} is only for dtype: float32; the values of uint8 images stay as they are, 0 to 255"
        )
    if fit == "stretch" and shorter is not None:
        raise ValueError(
            "option 'resize' is only for fit: crop; fit: stretch scales the whole image to `size`"
        )
    std = numbers_option(options, "std", 1.0, [CHANNELS[colours]])
    if not all(std):
        raise ValueError("option 'std' contains 0, but values are divided by it")
    (scale,) = numbers_option(options, "scale", 1 / 255, [])
    mean = numbers_option(options, "mean", 0.0, [CHANNELS[colours]])
    layout = word_option(options, "layout", ("nchw", "nhwc"), "nchw")
    return ImageForm(sides[0], sides[1], shorter, fit, layout, colours, dtype, scale, mean, std)


def labelled_images(folder: Path, options: Mapping[str, Any]) -> Iterator[Example]:
    """Images in order of class and name. Raises `ValueError` with one line."""
    form, most = form_of(options), whole_option(options, "per_class", 1, 10_000)
    try:
        import_module("PIL.Image")
    except ImportError:
        raise ValueError(NEEDED) from None
    present = sorted(
        path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    for name, label in classes_of(options.get("classes"), present).items():
        files = (folder / name).iterdir()
        images = sorted(path for path in files if path.suffix.lower() in ENDINGS and path.name[0] != ".")
        for path in images[:most]:
            yield Example(read_image(path, form), label)


def classes_of(given: Any, present: list[str]) -> dict[str, int]:
    """Maps each folder to the index of its class. `given`: the folders in the order of the model's classes; None: `present`."""
    if not present:
        raise ValueError("the folder has no subfolders: make one per class, with its images in it")
    names = present if given is None else given
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError(
            "option 'classes' has to list the folders in the order of the model's classes, as texts: ['0', '1'] or [cat, dog]"
        )
    classes = {name: index for index, name in enumerate(names)}
    if len(classes) < len(names):
        raise ValueError("option 'classes' names a folder twice")
    for name in present:
        if name not in classes:
            guess = did_you_mean(name, classes) or "add it, or remove the folder"
            raise ValueError(f"option 'classes' has no {safe_text(name, 60)!r}, which is a folder: {guess}")
    return {name: classes[name] for name in present}


def read_image(path: Path, form: ImageForm) -> np.ndarray[Any, Any]:
    """One image as the model's input, with a batch axis of 1. EXIF orientation is ignored."""
    from PIL import Image, UnidentifiedImageError

    shown = f"image {safe_text(path.name, 80)!r} of class {safe_text(path.parent.name, 60)!r}"
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit here is lower
    try:
        with Image.open(path, formats=FORMATS) as image:
            size, mode = image.size, image.mode
            fits = math.prod(size) <= MAX_PIXELS and mode in MODES
            plain = image.convert("L" if form.colours == "grey" else "RGB") if fits else None
    except UnidentifiedImageError:
        raise ValueError(f"{shown} is not one of {', '.join(FORMATS)}, or is damaged") from None
    except (OSError, SyntaxError, EOFError, ValueError, Image.DecompressionBombError):
        raise ValueError(f"{shown} is damaged or truncated") from None
    if mode not in MODES:
        raise ValueError(f"{shown} has values of more than 8 bits ({mode}): save it with 8 bits")
    resized = resized_size(size, form)
    if plain is None or math.prod(resized) > MAX_PIXELS:
        raise ValueError(
            f"{shown} is {size[0]} x {size[1]}: at most {MAX_PIXELS // 10**6} million pixels are allowed, also after resizing"
        )
    return _input(plain, resized, form)


def resized_size(size: tuple[int, int], form: ImageForm) -> tuple[int, int]:
    """Width and height before the centre crop."""
    wanted = (form.width, form.height)
    if form.fit == "stretch":
        return wanted
    share = max(Fraction(least, side) for least, side in zip(wanted, size, strict=True))
    if form.shorter is not None:
        share = max(share, Fraction(form.shorter, min(size)))
    return int(size[0] * share), int(size[1] * share)


def _input(image: Any, size: tuple[int, int], form: ImageForm) -> np.ndarray[Any, Any]:
    import numpy as np
    from PIL import Image

    left, top = round((size[0] - form.width) / 2), round((size[1] - form.height) / 2)
    resized = image.resize(size, Image.Resampling.BILINEAR)
    cut = resized.crop((left, top, left + form.width, top + form.height))
    values = np.asarray(cut).reshape(form.height, form.width, CHANNELS[form.colours])
    if form.colours == "bgr":
        values = values[:, :, ::-1]
    if form.dtype == "float32":
        values = ((values * form.scale - np.array(form.mean)) / np.array(form.std)).astype(np.float32)
    if form.layout == "nchw":
        values = values.transpose(2, 0, 1)
    return np.ascontiguousarray(values)[np.newaxis]
