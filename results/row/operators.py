"""Where a model's operators ran, according to a record: each type's share of the time, and what did not run on the unit's own provider.
Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from protocol.values.record import RunFacts
from results.row.form import JsonModel
from swarm.base.text import count

NO_REASON: Final = "the runtime gives no reason"
MAX_LINES: Final = 12
"""Maximum operator types of one task in a table; types that fell back are always shown."""
_ENDING: Final = "ExecutionProvider"


class OperatorLine(JsonModel):
    """The operators of one type that ran in one place."""

    op: str
    domain: str
    """Domain of the operator type. Empty: ONNX's own."""
    provider: str
    """Provider that ran the operators, such as `CUDA`."""
    fell_back: bool
    """Whether the operators ran on another provider than the unit's own."""
    nodes: int | None
    """Number of nodes in the model's graph, before fusing. Null if the runtime does not tell."""
    ran: int
    """Number of kernels that ran. 0: all were fused into others or computed while loading."""
    ms: float | None
    """Time of these operators in one inference, in milliseconds."""
    share: float | None
    """Share of the time of all operators, from 0 to 1."""
    why: str
    """Why the operators fell back."""


class OperatorUses(JsonModel):
    """Where all operators of a model ran."""

    lines: tuple[OperatorLine, ...]
    """A line for each operator type and provider, the slowest first."""
    summary: str
    """Summary in one or two sentences."""
    issued: bool
    """Whether the times of a device are only the times of issuing its work."""

    def first(self) -> tuple[list[OperatorLine], int, float]:
        """The first `MAX_LINES` and all that fell back; the number of lines left out, and their share of the time."""
        shown = [line for at, line in enumerate(self.lines) if at < MAX_LINES or line.fell_back]
        share = sum(line.share or 0.0 for line in self.lines[MAX_LINES:] if not line.fell_back)
        return shown, len(self.lines) - len(shown), share


def show_provider(name: str) -> str:
    """`CUDAExecutionProvider` as `CUDA`."""
    return name.removesuffix(_ENDING) or name


def operator_uses(ran: RunFacts | None) -> OperatorUses | None:
    """The uses; None if the record has none."""
    if ran is None or not ran.operators:
        return None
    own = ran.providers[0] if ran.providers else ran.operators[0].provider
    total = sum(one.ns or 0 for one in ran.operators)
    lines = tuple(
        OperatorLine(
            op=one.op,
            domain=one.domain or "",
            provider=show_provider(one.provider),
            fell_back=one.provider != own,
            nodes=one.nodes,
            ran=one.ran or 0,
            ms=None if one.ns is None else one.ns / 1e6,
            share=None if one.ns is None or not total else one.ns / total,
            why=(one.why or NO_REASON) if one.provider != own else "",
        )
        for one in ran.operators
    )
    issued = any(one.issued for one in ran.operators)
    return OperatorUses(lines=lines, summary=_summary(lines, show_provider(own), issued), issued=issued)


def _summary(lines: Sequence[OperatorLine], own: str, issued: bool) -> str:
    ran = Counter[str]()
    for line in lines:
        ran[line.provider] += line.ran or (0 if any(one.ran for one in lines) else line.nodes or 0)
    total = sum(ran.values())
    others = [name for name, _ in ran.most_common() if name != own and ran[name]]
    if not others:
        text = f"{'The operator' if total == 1 else f'All {total} operators'} ran on {own}."
    else:
        fell = ", ".join(f"{ran[name]} on {name}" for name in others)
        text = f"{ran[own]} of {count(total, 'operator')} ran on {own}, {fell}"
        shares = [line.share for line in lines if line.fell_back and line.share is not None]
        time = "the host's time" if issued else "the time"
        text += f" ({sum(shares):.0%} of {time})." if shares else "."
    timed = [line for line in lines if line.share is not None][:3]
    if timed and timed[0].ms:
        longest = ", ".join(f"{line.op} ({line.share:.0%})" for line in timed if line.share)
        text += f" {'Slowest to issue' if issued else 'Slowest'}: {longest}."
    return text
