"""A complete metric, to copy and change: python -m pip install ./examples/metric, then: metrics: [accuracy, margin] in a campaign.

It says how sure a classifier is of the right class. Contract: docs/evaluation.md.
"""

from collections.abc import Sequence

from results.scoring.plugins import Answer


class Margin:
    """Named by the entry point."""

    name = "margin"  # the same as the entry point's name

    def score(self, answers: Sequence[Answer]) -> dict[str, float]:
        """Mean distance between the label's value and the highest other one; below 0 where the answer is wrong."""
        margins = []
        for number, answer in enumerate(answers, 1):
            if isinstance(answer.outputs, str) or len(answer.outputs) != 1:
                raise ValueError(
                    f"the answer to example {number} is not one output: margin needs a value per class"
                )
            (output,) = answer.outputs.values()
            values, label = output.reshape(-1).tolist(), answer.reference
            if len(values) < 2 or label not in range(len(values)):
                raise ValueError(f"example {number} has {len(values)} classes and the label {label}")
            margins.append(values[label] - max(values[:label] + values[label + 1 :]))
        return {"margin": sum(margins) / len(margins), "margin_min": min(margins)}
