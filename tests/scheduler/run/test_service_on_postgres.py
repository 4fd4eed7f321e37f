"""The service with its store on a PostgreSQL server: repeats the tests that cover every write."""

from __future__ import annotations

import pytest

from scheduler.store.database import ServerLocation
from tests.scheduler.conftest import on_server
from tests.scheduler.run import test_cancels as cancels
from tests.scheduler.run import test_losses as losses
from tests.scheduler.run import test_planning_on_devices as planning
from tests.scheduler.run import test_service as same


@pytest.fixture
def world_place(postgres: str) -> ServerLocation:
    """Replaces the store in a file."""
    return on_server(postgres)


test_a_campaign_runs_to_its_end_and_the_scheduler_leaves = (
    same.test_a_campaign_runs_to_its_end_and_the_scheduler_leaves
)
test_a_worker_that_dies_in_mid_run_loses_its_tasks_to_another = (
    losses.test_a_worker_that_dies_in_mid_run_loses_its_tasks_to_another
)
test_a_scheduler_that_was_killed_carries_on_and_nothing_runs_twice = (
    losses.test_a_scheduler_that_was_killed_carries_on_and_nothing_runs_twice
)
test_a_cancel_ends_running_queued_and_pending_tasks = (
    cancels.test_a_cancel_ends_running_queued_and_pending_tasks
)
test_a_campaign_submitted_while_the_scheduler_starts_is_seen = (
    planning.test_a_campaign_submitted_while_the_scheduler_starts_is_seen
)
