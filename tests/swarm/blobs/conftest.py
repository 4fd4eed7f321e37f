"""Downloads on a clock that jumps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import trio

T = TypeVar("T")


@pytest.fixture(autouse=True)
def _blocking_calls_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run blocking calls in place, because the clock does not wait for threads."""

    async def run_sync(call: Callable[..., T], *arguments: Any, **_: Any) -> T:
        await trio.lowlevel.checkpoint()
        return call(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
