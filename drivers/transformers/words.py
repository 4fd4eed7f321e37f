"""The tokenizer in a model's folder: its files, read by `transformers`, never code of the folder's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from drivers.contract.base import Unfit
from drivers.transformers.offline import runtime

FILES: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
"""One of them has the words."""
SAVE: Final = "save it with tokenizer.save_pretrained(folder)"


class FolderWords:
    """See `drivers.local.greedy.Words`."""

    def __init__(self, folder: Path, ends: frozenset[int]) -> None:
        """`ends`: the model's own tokens that end an answer. Raises `Unfit`."""
        if not any((folder / name).is_file() for name in FILES):
            raise Unfit(f"the folder has no tokenizer, so the model takes no texts: {SAVE}")
        try:
            self._tokenizer: Any = runtime().AutoTokenizer.from_pretrained(
                str(folder), trust_remote_code=False, local_files_only=True
            )
        except Exception as why:  # of tokenizers and jinja2 too, which have classes of their own
            raise Unfit(f"its tokenizer cannot be read: {_line(why)}; {SAVE}") from why
        own = self._tokenizer.eos_token_id
        self._ends = ends if own is None else ends | {own}

    def prompt(self, text: str) -> np.ndarray[Any, Any]:
        tokenizer = self._tokenizer
        try:
            if not tokenizer.chat_template:
                return np.array(tokenizer(text)["input_ids"], np.int32)
            said = [{"role": "user", "content": text}]
            written = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
            return np.array(tokenizer(written, add_special_tokens=False)["input_ids"], np.int32)
        except Exception as why:
            raise Unfit(f"its tokenizer or chat template fails: {_line(why)}") from why

    def ends(self, token: int) -> bool:
        return token in self._ends

    def text(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))


def ends_of(*configs: Any) -> frozenset[int]:
    """The tokens that end an answer by a model's configs."""
    found: set[int] = set()
    for config in configs:
        given = getattr(config, "eos_token_id", None)
        found.update(given if isinstance(given, list) else [] if given is None else [given])
    return frozenset(found)


def _line(why: BaseException) -> str:
    return f"{type(why).__name__}: {' '.join(str(why).split())[:300]}"
