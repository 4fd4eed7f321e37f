"""Sends a server the examples of an order, each as a prompt of its own, and collects its answers. None of this is timed."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Final

from drivers.contract.answers import read_examples, report_answers, text_of
from drivers.contract.base import AnswersReport, ProgressReport, Unfit, WorkOrder
from drivers.openai import prompts
from drivers.openai.client import ServerSession
from drivers.openai.load import STEP_S, Ask, Sweep, closed_loop
from drivers.openai.sse import RequestResult
from drivers.openai.workload import Workload
from protocol.formats.examples import MAX_ANSWER_BYTES, MIB, UNNAMED, Values, text_value
from protocol.formats.phase import Phase

TOO_MUCH: Final = f"the answers so far exceed {MAX_ANSWER_BYTES // MIB} MiB"


def answer_examples(
    order: WorkOrder, workload: Workload, session: ServerSession, model: str
) -> Generator[ProgressReport, None, AnswersReport]:
    """The answers to all examples, or why there are none. The measurement is valid either way. As many requests are in flight as at the
    first level of load, and answers end where the model ends them."""
    try:
        texts = texts_of(read_examples(order))
    except Unfit as why:
        return AnswersReport(why=str(why))
    asked = workload.model_copy(update={"ignore_eos": False})
    ask = session.requests(asked, lambda at: prompts.body(asked, model, texts[at]), 0, keep_text=True)
    sweep, total = Sweep(), len(texts)
    numbers = iter(range(total))
    work = closed_loop(sweep, bounded(ask), numbers, workload.concurrency[0], session.clock, bad=0)
    yield ProgressReport(Phase.CHECK, 0, total)
    for _ in session.steps(work, STEP_S):
        yield ProgressReport(Phase.CHECK, len(sweep.results), total)
    for number, result in sorted(sweep.results.items()):
        if broken := result.error or ("" if result.text else "it contains only reasoning: raise max_tokens"):
            return AnswersReport(why=f"the answer to example {number + 1} of {total}: {broken}"[:2000])
    return report_answers({UNNAMED: text_value(result.text)} for result in sweep.in_order)


def texts_of(examples: Sequence[Values]) -> list[str]:
    """The prompts. Raises `Unfit` for examples that are not texts."""
    texts: list[str] = []
    for number, example in enumerate(examples, 1):
        text = text_of(example)
        if text is None:
            raise Unfit(f"a server takes texts, but example {number} of {len(examples)} consists of tensors")
        texts.append(text)
    return texts


def bounded(ask: Ask) -> Ask:
    """Limit the total size of the answers: fails the request whose answer exceeds what a record can hold."""
    size = 0

    async def within(number: int) -> RequestResult:
        nonlocal size
        result = await ask(number)
        text = result.text.encode(errors="replace").decode()  # a server may send an incomplete character
        size += len(text.encode())
        return replace(result, text=text, error=result.error or (TOO_MUCH if size > MAX_ANSWER_BYTES else ""))

    return within
