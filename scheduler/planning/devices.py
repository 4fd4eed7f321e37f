"""Fixing the tasks of a campaign that depends on the devices that are there, once these have been seen."""

from __future__ import annotations

from typing import Final

import trio

from protocol.errors import CampaignError
from scheduler.planning.candidates import DeviceFinder, plan_on_devices
from scheduler.store.rows import CampaignRow
from scheduler.store.store import Store

SEEK_S: Final = 2.0
AGREE_S: Final = 1.0
"""Between the two looks at the index that must agree before a campaign over devices is planned."""


async def fix_plan(index: DeviceFinder, store: Store, row: CampaignRow, left_s: float | None) -> None:
    """Wait until the same devices are seen twice in a row, or as long as the campaign waits; then put its tasks on disk, or its end.

    `left_s`: of its time; None: it has no limit.
    """
    until = trio.current_time() + (row.wait_s if left_s is None else min(row.wait_s, left_s))
    before: frozenset[str] = frozenset()
    try:
        while True:
            tasks, seen = await plan_on_devices(index, row, store.campaigns.models(row.id))
            current = store.campaigns.get(row.id)
            if current is None or current.cancel:
                store.campaigns.end(row.id)
                return
            if (seen and seen == before) or trio.current_time() >= until:
                store.campaigns.plan(row.id, tasks)
                return
            before = seen
            await trio.sleep(AGREE_S if seen else SEEK_S)
    except CampaignError as exc:
        store.campaigns.end(row.id, detail=exc.what)
