"""What the API driver sends: made prompts that no server has seen before, listed ones, articles; each as the body of a request. Pure."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Final

from drivers.contract.base import Unfit
from drivers.openai import summaries
from drivers.openai.workload import Endpoint, Workload, WorkloadJob

MAX_BYTES: Final = 64 * 1024 * 1024
"""Of all requests of one level, which are made before it begins."""
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
"""Common words, which nearly every tokenizer has whole."""

Prompt = Callable[[int], str]
"""The prompt of the request with that number."""


def prompts(workload: Workload, seed: int) -> Prompt:
    """The prompts of a workload. Made ones differ from their first word on, so that no server can have kept their beginning."""
    if workload.job is WorkloadJob.SUMMARISE:
        texts = [article.prompt for article in summaries.articles()]
        return lambda number: texts[number % len(texts)]
    if workload.prompts:
        return lambda number: workload.prompts[number % len(workload.prompts)]

    def made(number: int) -> str:
        rng = random.Random(f"{seed} prompt {number}")
        return " ".join(rng.choices(WORDS, k=workload.prompt_tokens))

    return made


def body(workload: Workload, model: str, prompt: str) -> bytes:
    """A request's body."""
    asked: dict[str, Any] = {
        "model": model,
        "max_tokens": workload.max_tokens,
        "temperature": workload.temperature,
        "stream": workload.stream,
    }
    if workload.endpoint is Endpoint.CHAT:
        asked["messages"] = [{"role": "user", "content": prompt}]
    else:
        asked["prompt"] = prompt
    if workload.stream:
        asked["stream_options"] = {"include_usage": True}
    if workload.seed is not None:
        asked["seed"] = workload.seed
    if workload.ignore_eos:
        asked["ignore_eos"] = True
    return json.dumps(asked).encode()


def check_size(workload: Workload, requests: int) -> None:
    """Raises `Unfit` when the requests of one level would not fit into a bounded memory."""
    longest = max(map(len, workload.prompts), default=workload.prompt_tokens * LETTERS_PER_WORD)
    if requests * (longest + 300) > MAX_BYTES:
        raise Unfit(
            f"{requests} requests with prompts of {longest} letters are more than {MAX_BYTES // 1024**2} MiB: ask fewer or shorter ones"
        )
