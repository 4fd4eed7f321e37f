"""The model under Hypothesis: any fault at any moment, in whatever order breaks most, shrunk to the shortest sequence."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.scheduler.core_invariants import check as check_state
from tests.simulation.history import Breach
from tests.simulation.invariants import SAFETY, check
from tests.simulation.model import FAITHFUL, World
from tests.simulation.wire import Weather


class Swarm(RuleBasedStateMachine):
    """Two schedulers and three workers. The rules are the faults, and the passing of time."""

    world: World

    @initialize(seed=st.integers(0, 2**16))
    def begin(self, seed: int) -> None:
        self.world = World(seed, FAITHFUL)
        self.world.begin()
        self.seconds(3.0)

    @rule(seconds=st.sampled_from([0.05, 0.5, 3.0, 10.0, 20.0]))
    def seconds(self, seconds: float) -> None:
        self.world.kernel.run(self.world.kernel.now + seconds, lambda: False)

    @rule(
        drop=st.sampled_from([0.0, 0.3]),
        twice=st.sampled_from([0.0, 0.3]),
        slow=st.sampled_from([0.0, 0.3]),
        latency=st.sampled_from([0.002, 0.3]),
    )
    def weather(self, drop: float, twice: float, slow: float, latency: float) -> None:
        self.world.air.weather = Weather(drop, twice, slow, latency)

    @rule(
        what=st.sampled_from(
            [
                "crash_worker",
                "crash_scheduler",
                "pause",
                "cut",
                "fill_worker",
                "fill_scheduler",
                "cancel",
                "revoke",
                "drop_links",
            ]
        )
    )
    def fault(self, what: str) -> None:
        getattr(self.world, what)()

    @invariant()
    def nothing_is_broken(self) -> None:
        if not hasattr(self, "world"):
            return
        for scheduler in self.world.schedulers:
            if scheduler.process.alive:
                check_state(scheduler.core.state)
        breaches = [breach for holds in SAFETY for breach in holds(self.world.history)]
        assert not [breach for breach in breaches if not _still_dying(breach)], breaches

    def teardown(self) -> None:
        """Everything ends once faults stop."""
        if not hasattr(self, "world"):
            return
        self.world.wind_down()
        breaches = check(self.world.history)
        self.world.close()
        assert not breaches, [str(breach) for breach in breaches]


def _still_dying(breach: Breach) -> bool:
    """Judged only at the end, when it is known how long a run lived on."""
    return breach.invariant == "no_orphan_run"


Swarm.TestCase.settings = settings(max_examples=12, stateful_step_count=20)
TestSwarm = Swarm.TestCase
