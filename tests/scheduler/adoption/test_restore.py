"""A home restored from a backup, or a running copy of it, continues its campaign."""

from __future__ import annotations

from protocol.values.attempt import TaskState
from scheduler.store import archive
from scheduler.store.rows import CampaignStatus
from scheduler.store.store import Store
from tests.scheduler.adoption.test_adoption import TASKS, end, records, states
from tests.scheduler.adoption.world import CAMPAIGN, World, until


def restore(world: World, home: str, backup: str) -> None:
    """Do what `db restore --replace` does."""
    with world.store(home) as store, Store(world.folder / backup) as source:
        archive.replace(store, source)


async def test_a_home_restored_from_a_backup_carries_its_campaign_on(world: World) -> None:
    for name in ("one", "two", "three"):
        await world.worker(name)
    world.submit("home-a", TASKS)
    async with world.scheduler("home-a") as store:
        await until(lambda: world.launched == 3, "three runs")
    with world.store("home-a") as store:
        archive.write_copy(world.folder / "backup", store)
    for _ in range(3):  # each life leads under a higher epoch, which workers learn when they get a task
        before = world.launched
        async with world.scheduler("home-a") as store:
            world.workers["one"].runs[-1].go.set()
            await until(lambda before=before: world.launched > before, "the next one runs")
    restore(world, "home-a", "backup")
    async with world.scheduler("home-a") as store:
        await end(world, store)
        row = store.campaigns.get(CAMPAIGN)
        assert row.outcome is CampaignStatus.SUCCEEDED, row.detail
        assert states(store) == {TaskState.SUCCEEDED: TASKS}
        assert records(store) == [1] * TASKS
