"""The tokenizer of a model's folder. `transformers` is a double that splits at spaces."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drivers.contract.base import Unfit
from drivers.transformers.folder import ModelFolder
from drivers.transformers.tokenizer import FolderTokenizer


class TemplateError(Exception):
    """Like jinja2's error: shares no base class with others."""


class Tokenizer:
    def __init__(self, template: str | None, eos: int | None) -> None:
        self.chat_template, self.eos_token_id = template, eos

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [*([1] if add_special_tokens else []), *map(int, text.split())]}

    def apply_chat_template(self, said: Any, *, tokenize: bool, add_generation_prompt: bool) -> str:
        if self.chat_template == "broken":
            raise TemplateError("no users")
        assert (said[0]["role"], tokenize, add_generation_prompt) == ("user", False, True)
        return f"7 {said[0]['content']} 8"

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return " ".join(map(str, tokens))


def opened(
    folder: Path, monkeypatch: pytest.MonkeyPatch, template: str | None = None, eos: int | None = 2
) -> FolderTokenizer:
    (folder / "tokenizer.json").touch()

    def read(path: str, **how: bool) -> Tokenizer:
        assert (path, how) == (str(folder), {"trust_remote_code": False, "local_files_only": True})
        return Tokenizer(template, eos)

    double = SimpleNamespace(AutoTokenizer=SimpleNamespace(from_pretrained=read))
    monkeypatch.setitem(sys.modules, "transformers", double)
    return FolderTokenizer(ModelFolder(folder, {"eos_token_id": 5}, "LlamaForCausalLM"))


def test_a_text_is_tokenised_as_it_is_or_in_the_chat_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = opened(tmp_path, monkeypatch)
    assert plain.prompt("3 4").tolist() == [1, 3, 4]
    assert plain.text([3, 4]) == "3 4"
    chat = opened(tmp_path, monkeypatch, "a template")
    assert chat.prompt("3 4").tolist() == [7, 3, 4, 8], "the template has its special tokens itself"
    with pytest.raises(Unfit, match="its tokenizer or chat template fails: TemplateError: no users"):
        opened(tmp_path, monkeypatch, "broken").prompt("3")


def test_an_answer_ends_with_any_of_the_models_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = opened(tmp_path, monkeypatch)
    assert [token for token in range(9) if words.ends(token)] == [2, 5]
    words = opened(tmp_path, monkeypatch, eos=None)
    assert [token for token in range(9) if words.ends(token)] == [5]
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [4, 6]}')
    words = opened(tmp_path, monkeypatch)
    assert [token for token in range(9) if words.ends(token)] == [2, 4, 5, 6]
    (tmp_path / "generation_config.json").write_text("[")
    with pytest.raises(Unfit, match=r"generation_config\.json"):
        opened(tmp_path, monkeypatch)


def test_a_folder_without_a_tokenizer_takes_no_texts(tmp_path: Path) -> None:
    with pytest.raises(Unfit, match=r"no tokenizer.* tokenizer\.save_pretrained\(folder\)"):
        FolderTokenizer(ModelFolder(tmp_path, {}, "LlamaForCausalLM"))


def test_a_tokenizer_that_is_broken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizer.json").touch()

    def read(path: str, **how: bool) -> None:
        raise TemplateError("expected\n value")

    double = SimpleNamespace(AutoTokenizer=SimpleNamespace(from_pretrained=read))
    monkeypatch.setitem(sys.modules, "transformers", double)
    with pytest.raises(
        Unfit, match=r"its tokenizer cannot be read; save it .*: TemplateError: expected value"
    ):
        FolderTokenizer(ModelFolder(tmp_path, {}, "LlamaForCausalLM"))
