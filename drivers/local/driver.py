"""The base of the drivers that load the model into their own process. Imports little, as a driver's module must."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

from drivers.contract.base import Event, WaitTurn, WorkOrder

if TYPE_CHECKING:
    from drivers.local.model import LocalModel


class LocalDriver(ABC):
    """See `drivers.contract.base.Driver`."""

    name: str
    formats: tuple[str, ...] = ()
    """See `drivers.contract.base.formats_of`."""
    sustains = True
    """The driver's children can infer for as long as the order says (`WorkOrder.sustain_s`)."""

    @abstractmethod
    def open(self, order: WorkOrder) -> LocalModel:
        """The order's model, checked as far as possible without loading it."""

    def load_only(self, order: WorkOrder) -> Iterator[Event]:
        from drivers.local import model

        yield from model.load(self, order)

    def run_together(self, order: WorkOrder) -> Iterator[Event]:
        """Run all models of an order with `beside`, in turns."""
        from drivers.local import together

        yield from together.run_together(self, order)

    def run_in_turns(self, order: WorkOrder, has_turn: WaitTurn) -> Iterator[Event]:
        """Run the single model of an order, in turns with models of other processes: a block of inferences whenever `has_turn` returns
        True."""
        from drivers.local import turns

        yield from turns.run_in_turns(self, order, has_turn)

    def run(self, order: WorkOrder) -> Iterator[Event]:
        from drivers.local import model

        yield from model.run(self, order)

    def answer(self, order: WorkOrder) -> Iterator[Event]:
        """See `drivers.contract.base.answers_examples`."""
        from drivers.local import model

        yield from model.answer(self, order)
