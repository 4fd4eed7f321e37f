"""The prompts and request bodies of the API driver: synthetic prompts that no server has cached, or listed ones. Pure."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Final

from drivers.contract.base import Unfit
from drivers.openai.workload import Endpoint, Synthetic, Workload

MAX_BYTES: Final = 64 * 1024 * 1024
"""Most bytes of all requests of one level, which are made before the level begins."""
LETTERS_PER_WORD: Final = 7
_WORDS: Final = """
time year people way day man thing woman life child world school state family student group country problem hand part
place case week company system program question work night point home water room mother area money story fact month lot
right study book eye job word business issue side kind head house service friend father power hour game line end member
law car city name team minute idea body back parent face level office door health person art history party result change
morning reason research moment air teacher force education foot boy age policy music market sense nation plan college
interest course experience effect use class control field role effort rate heart show leader light voice mind price
report decision son view town road tree rain river stone bird table glass paper train
"""
WORDS: Final = tuple(_WORDS.split())
"""Common words: one token each for nearly every tokenizer."""

Prompt = Callable[[int], str]
"""Returns the prompt of the request with the given number."""


def prompts(workload: Workload, seed: int) -> Prompt:
    """The prompts of a workload. Synthetic prompts differ from their first word on, so that no server can have cached a prefix."""
    listed = workload.prompts
    if not isinstance(listed, Synthetic):
        return lambda number: listed[number % len(listed)]

    def synthetic(number: int) -> str:
        rng = random.Random(f"{seed} prompt {number}")
        return " ".join(rng.choices(WORDS, k=listed.tokens))

    return synthetic


def body(workload: Workload, model: str, prompt: str) -> bytes:
    fields: dict[str, Any] = {
        "model": model,
        "max_tokens": workload.max_tokens,
        "temperature": workload.temperature,
        "stream": workload.stream,
    }
    if workload.endpoint is Endpoint.CHAT:
        fields["messages"] = [{"role": "user", "content": prompt}]
    else:
        fields["prompt"] = prompt
    if workload.stream:
        fields["stream_options"] = {"include_usage": True}
    if workload.seed is not None:
        fields["seed"] = workload.seed
    if workload.ignore_eos:
        fields["ignore_eos"] = True
    return json.dumps(fields).encode()


def check_size(workload: Workload, requests: int) -> None:
    """Raises `Unfit` if the requests of one level would exceed the memory bound."""
    listed = workload.prompts
    longest = listed.tokens * LETTERS_PER_WORD if isinstance(listed, Synthetic) else max(map(len, listed))
    if requests * (longest + 300) > MAX_BYTES:
        raise Unfit(
            f"{requests} requests with prompts of {longest} characters exceed {MAX_BYTES // 1024**2} MiB: send fewer or shorter ones"
        )
