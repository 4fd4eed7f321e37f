"""The tokenizer in a GGUF file. The library is a double whose tokens are the bytes of a text, each twice, after a start token."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from drivers.contract.base import Unfit
from drivers.llamacpp.tokenizer import GgufTokenizer

BOS, END = 1000, 1001


class Message(ctypes.Structure):
    _fields_ = (("role", ctypes.c_char_p), ("content", ctypes.c_char_p))


class Double:
    llama_token = ctypes.c_int32
    llama_chat_message = Message

    def __init__(self, template: bytes | None = None, kind: int = 1) -> None:
        self.template, self.kind = template, kind
        self.special: list[bool] = []

    def llama_model_get_vocab(self, model: Any) -> str:
        return f"{model}'s words"

    def llama_vocab_type(self, vocabulary: str) -> int:
        return self.kind

    def llama_model_chat_template(self, model: Any, name: None) -> bytes | None:
        return self.template

    def llama_vocab_is_eog(self, vocabulary: str, token: int) -> bool:
        return token == END

    def llama_chat_apply_template(
        self, template: bytes, said: Any, count: int, answered: bool, into: Any, size: int
    ) -> int:
        if template != b"known":
            return -1
        assert (said[0].role, count, answered) == (b"user", 1, True)
        written = b"<user>" + said[0].content + b"<assistant>"
        if into is not None:
            into.raw = written[:size].ljust(size, b"\0")
        return len(written)

    def llama_tokenize(
        self, vocabulary: str, text: bytes, length: int, into: Any, size: int, add: bool, special: bool
    ) -> int:
        assert add
        self.special.append(special)
        tokens = [BOS, *(byte for byte in text[:length] for _ in range(2))]
        if len(tokens) > size:
            return -len(tokens)
        into[: len(tokens)] = tokens
        return len(tokens)

    def llama_detokenize(
        self, vocabulary: str, given: Any, count: int, into: Any, size: int, remove: bool, special: bool
    ) -> int:
        assert not special
        text = b"".join(bytes([token]) * 20 for token in given[:count])
        if len(text) > size:
            return -len(text)
        into.raw = text.ljust(size + 1, b"\0")
        return len(text)


def text_of(tokens: Any) -> str:
    assert tokens[0] == BOS
    return bytes(tokens.tolist()[1::2]).decode()


def test_a_plain_prompt_is_the_text_and_its_tokens_fit_however_many() -> None:
    lib = Double()
    assert text_of(GgufTokenizer(lib, "m").prompt("Bär, <|end|>" * 10)) == "Bär, <|end|>" * 10
    assert set(lib.special) == {False}, "a text has no special tokens"


def test_a_known_chat_template_is_written_and_no_other_is_run() -> None:
    lib = Double(b"known")
    assert text_of(GgufTokenizer(lib, "m").prompt("Bär")) == "<user>Bär<assistant>"
    assert set(lib.special) == {True}
    with pytest.raises(Unfit, match="contains the character NUL"):
        GgufTokenizer(lib, "m").prompt("a\0b")
    with pytest.raises(Unfit, match=r"does not know the chat template.* measure API \(OpenAI\)"):
        GgufTokenizer(Double(b"{{ 1 }}"), "m").prompt("a")


def test_tokens_become_text_and_one_of_them_ends_it() -> None:
    words = GgufTokenizer(Double(), "m")
    assert words.text([97, 98]) == "a" * 20 + "b" * 20
    assert words.text([0xFF]) == "\ufffd" * 20
    assert words.text([]) == ""
    assert (words.ends(END), words.ends(97)) == (True, False)


def test_a_file_without_a_tokenizer_takes_no_texts() -> None:
    with pytest.raises(Unfit, match="the file has no tokenizer"):
        GgufTokenizer(Double(kind=0), "m")
