"""The tokenizer in a GGUF file. Its chat template is a program, which is never run: llama.cpp recognises the template and formats prompts
itself. The library is an argument."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from drivers.contract.base import Crashed, Unfit

NO_VOCABULARY: Final = 0
"""`LLAMA_VOCAB_TYPE_NONE`."""
SPECIAL: Final = 8
"""Room for tokens in addition to those of the text."""


class GgufTokenizer:
    """See `drivers.local.greedy.ModelTokenizer`."""

    def __init__(self, lib: Any, model: Any) -> None:
        """Read the tokenizer. Raises `Unfit`."""
        self._lib, self._vocabulary = lib, lib.llama_model_get_vocab(model)
        if lib.llama_vocab_type(self._vocabulary) == NO_VOCABULARY:
            raise Unfit("the file has no tokenizer, so the model takes no texts")
        self._template: bytes | None = lib.llama_model_chat_template(model, None)

    def prompt(self, text: str) -> np.ndarray[Any, Any]:
        if self._template:
            return self._tokens(self._in_chat(self._template, text), special=True)
        return self._tokens(text.encode(), special=False)

    def ends(self, token: int) -> bool:
        return bool(self._lib.llama_vocab_is_eog(self._vocabulary, token))

    def text(self, tokens: Sequence[int]) -> str:
        given, size = (self._lib.llama_token * len(tokens))(*tokens), 16 * len(tokens)
        for _ in range(2):
            text = ctypes.create_string_buffer(size + 1)
            length = self._lib.llama_detokenize(
                self._vocabulary, given, len(tokens), text, size, False, False
            )
            if length >= 0:
                return text.raw[:length].decode(errors="replace")
            size = -length
        raise Crashed("llama_detokenize asks for a larger buffer each time")

    def _in_chat(self, template: bytes, text: str) -> bytes:
        if "\0" in text:
            raise Unfit("the text contains the character NUL, which no chat template accepts")
        said = (self._lib.llama_chat_message * 1)(self._lib.llama_chat_message(b"user", text.encode()))
        length = self._lib.llama_chat_apply_template(template, said, 1, True, None, 0)
        if length < 0:
            raise Unfit(
                "llama.cpp does not know the chat template of the file, and templates are never run; serve the model with "
                "llama-server and measure API (OpenAI)"
            )
        written = ctypes.create_string_buffer(length + 1)
        self._lib.llama_chat_apply_template(template, said, 1, True, written, length + 1)
        return written.raw[:length]

    def _tokens(self, text: bytes, *, special: bool) -> np.ndarray[Any, Any]:
        """Tokens of the text. `special`: names of special tokens in the text become those tokens."""
        size = len(text) + SPECIAL
        for _ in range(2):
            tokens = (self._lib.llama_token * size)()
            count = self._lib.llama_tokenize(self._vocabulary, text, len(text), tokens, size, True, special)
            if count >= 0:
                return np.array(tokens[:count], np.int32)
            size = -count
        raise Crashed("llama_tokenize asks for a larger buffer each time")
