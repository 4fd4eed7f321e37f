"""The tokenizer in a model's folder: its files, read by `transformers`, never code of the folder. Used where the environment already says
that there is no network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

import numpy as np

from drivers.contract.base import Unfit
from drivers.contract.formats import read_json
from drivers.transformers.folder import ModelFolder

FILES: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
"""Files that hold the vocabulary; one of them is needed."""
GENERATION: Final = "generation_config.json"
SAVE: Final = "save it with tokenizer.save_pretrained(folder)"


class FolderTokenizer:
    """See `drivers.local.greedy.ModelTokenizer`."""

    def __init__(self, folder: ModelFolder) -> None:
        """Read the tokenizer. Raises `Unfit`."""
        if not any((folder.path / name).is_file() for name in FILES):
            raise Unfit(f"the folder has no tokenizer, so the model takes no texts: {SAVE}")
        with tokenizer_errors(f"its tokenizer cannot be read; {SAVE}"):
            self._tokenizer: Any = import_module("transformers").AutoTokenizer.from_pretrained(
                str(folder.path), trust_remote_code=False, local_files_only=True
            )
        self._ends = ends_of(folder) | {self._tokenizer.eos_token_id}

    def prompt(self, text: str) -> np.ndarray[Any, Any]:
        tokenizer = self._tokenizer
        with tokenizer_errors("its tokenizer or chat template fails"):
            if not tokenizer.chat_template:
                return np.array(tokenizer(text)["input_ids"], np.int32)
            said = [{"role": "user", "content": text}]
            written = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
            return np.array(tokenizer(written, add_special_tokens=False)["input_ids"], np.int32)

    def ends(self, token: int) -> bool:
        return token in self._ends

    def text(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))


def ends_of(folder: ModelFolder) -> set[object]:
    """The tokens that end an answer, according to the folder's configs."""
    file = folder.path / GENERATION
    own = read_json(file.read_bytes(), GENERATION) if file.is_file() else {}
    given = [config.get("eos_token_id") for config in (folder.config, own)]
    return {token for one in given for token in (one if isinstance(one, list) else [one])}


@contextmanager
def tokenizer_errors(what: str) -> Iterator[None]:
    """Turn every exception of a folder's tokenizer into `Unfit`: tokenizers and jinja2 have their own exception classes."""
    try:
        yield
    except Exception as why:
        raise Unfit(f"{what}: {_line(why)}") from why


def _line(why: BaseException) -> str:
    return f"{type(why).__name__}: {' '.join(str(why).split())[:300]}"
