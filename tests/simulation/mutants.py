"""Known mistakes, built in on purpose. The simulation is worth something only if it finds every one of them.

Each mistake is a subclass or a switch that the model receives; nothing is patched.
"""

from __future__ import annotations

from typing import Final

from tests.simulation import scheduler_mutants as scheduler
from tests.simulation import worker_mutants as worker
from tests.simulation.model import Mutant

MUTANTS: Final = (
    Mutant("grants one place too many", make_ledger=worker.with_slots(worker.OneTooMany)),
    Mutant("an offered place is free", shows=2, make_ledger=worker.with_slots(worker.OfferedIsFree)),
    Mutant("begins before the device is free", shows=3, make_ledger=worker.with_slots(worker.DeviceIsFree)),
    Mutant("forgets idempotency keys", shows=3, make_ledger=worker.ForgetsKeys),
    Mutant(
        "leases never expire",
        shows=17,
        faults=(14, 20),
        only=frozenset({"crash_scheduler", "cut"}),
        make_ledger=worker.NeverExpires,
    ),
    Mutant("ignores cancels", shows=0, make_ledger=worker.IgnoresCancel),
    Mutant("stops what is being timed", shows=4, make_ledger=worker.NeverTimed),
    Mutant("fences repeat", shows=0, make_ledger=worker.FencesRepeat),
    Mutant("the incarnation does not rise", shows=3, switches=frozenset({"same-incarnation"})),
    Mutant("checks no epoch", shows=2, make_ledger=worker.NoEpochCheck),
    Mutant("knows no quota", shows=9, make_ledger=worker.NoQuota),
    Mutant("serves its owner last", shows=19, make_ledger=worker.OwnerLast),
    Mutant(
        "sends results to whichever machine has the key", shows=1, make_conversation=worker.SendsToAnyLink
    ),
    Mutant("does not kill", shows=18, make_conversation=worker.KillsNothing),
    Mutant("says stopped too soon", shows=54, make_conversation=worker.StoppedTooSoon),
    Mutant("frees the slot of a stopped run at once", shows=3, make_conversation=worker.FreesTheSlotAtOnce),
    Mutant("sends a result before it is on disk", make_conversation=worker.SendsBeforeStoring),
    Mutant("takes a lost acknowledgement for one", make_conversation=worker.TakesSilenceForAnAnswer),
    Mutant("renews under a stale epoch", shows=33, make_conversation=worker.RenewsStaleEpochs),
    Mutant("forgets results when it restarts", shows=1, make_conversation=worker.ForgetsResults),
    Mutant(
        "drops what no disk took",
        shows=2478,
        faults=(3, 6),
        only=frozenset({"fill_worker", "adopt"}),
        make_conversation=worker.DropsWhatNoDiskTook,
    ),
    Mutant("keeps results from adopters", shows=117, make_conversation=worker.KeepsResultsFromAdopters),
    Mutant("checks no permission", shows=5, switches=frozenset({"no-permission"})),
    Mutant("runs another model", switches=frozenset({"wrong-model"})),
    Mutant("counts what was overtaken as a try", shows=53, make_core=scheduler.CountsTheOvertaken),
    Mutant(
        "never stops what was overtaken", shows=4, faults=(0, 2), make_core=scheduler.NeverStopsTheOvertaken
    ),
    Mutant(
        "extends a deadline for ever",
        shows=4,
        faults=(0, 1),
        holders=0.6,
        holds_on_s=300.0,
        make_core=scheduler.ExtendsForEver,
    ),
    Mutant("waits for whoever holds a task", shows=4, faults=(0, 2), make_core=scheduler.NeverHedgesRuns),
    Mutant("hedges every run at once", make_core=scheduler.HedgesAtOnce),
    Mutant("forgets one of two that run", shows=7, make_core=scheduler.ForgetsTheHedge),
    Mutant(
        "records the results of both that ran",
        shows=1,
        make_scheduler=scheduler.AnyAttemptCounts,
        store=scheduler.RecordsBoth,
    ),
    Mutant("retries for ever", shows=0, make_core=scheduler.RetriesForEver),
    Mutant("goes back to where it failed", make_core=scheduler.GoesBack),
    Mutant("starts both tickets", shows=2, make_core=scheduler.StartsTwice),
    Mutant(
        "takes a skip for a stop",
        shows=307228,
        faults=(0, 9),
        disasters=(0, 3),
        make_core=scheduler.TakesASkipForAStop,
    ),
    Mutant(
        "waits for lost workers",
        shows=3,
        make_core=scheduler.ForgetsTheLost,
        make_scheduler=scheduler.NeverGivesUp,
    ),
    Mutant("adopts without the settled results", shows=117, make_core=scheduler.ForgetsSettled),
    Mutant("ignores results when it adopts", shows=2, switches=frozenset({"ignores-settled"})),
    Mutant("renews what it has not adopted", shows=64, make_scheduler=scheduler.RenewsUnadopted),
    Mutant(
        "puts replicas together",
        shows=1,
        make_core=scheduler.ForgetsSiblings,
        switches=frozenset({"unchecked"}),
    ),
    Mutant("takes any fence", shows=83, store=scheduler.AnyFence, make_scheduler=scheduler.AnyFenceIsCurrent),
    Mutant(
        "takes results again", shows=2, store=scheduler.TakesAgain, make_scheduler=scheduler.AnyFenceIsCurrent
    ),
    Mutant("accepts a result before it is on disk", shows=4, make_scheduler=scheduler.AcceptsEarly),
    Mutant("answers before the commit", switches=frozenset({"answers-before-the-commit"})),
    Mutant("does not flush", store=scheduler.NoFlush),
    Mutant("accepts a campaign in memory", shows=3, store=scheduler.AcceptsInMemory),
    Mutant("stores what it decided after it was sent", make_scheduler=scheduler.StoresLater),
    Mutant("does not reconcile after a break", shows=17, make_scheduler=scheduler.NeverReconciles),
    Mutant("asks again under another key", shows=0, make_scheduler=scheduler.AsksUnderNewKeys),
    Mutant("accepts old results", shows=4, make_scheduler=scheduler.AcceptsOld),
    Mutant(
        "starts before it is stored",
        shows=2,
        make_core=scheduler.OwingCore,
        make_scheduler=scheduler.StartsFirst,
    ),
    Mutant("renews no lease", make_scheduler=scheduler.NeverRenews),
    Mutant("takes silence for an answer to a renewal", shows=0, make_scheduler=scheduler.HearsTheSilent),
    Mutant("takes a stop for confirmed", shows=27, make_scheduler=scheduler.ConfirmsStops),
    Mutant("forgets failed probes", shows=0, make_core=scheduler.ForgetsFailedProbes),
    Mutant("disbelieves proofs", shows=2, make_scheduler=scheduler.DisbelievesProofs),
    Mutant("waits for silent workers", shows=3, make_scheduler=scheduler.NeverGivesUp),
    Mutant("witnesses what it did not see", shows=15, make_scheduler=scheduler.WitnessesWhatItDidNotSee),
    Mutant(
        "reveals something else after a restart", shows=135, make_scheduler=scheduler.ForgetsWhatItRevealed
    ),
    Mutant(
        "a restart forgets the stops that are owed",
        shows=9,
        disasters=(2, 3),
        only=frozenset({"crash_worker", "crash_scheduler", "cancel_unheard"}),
        switches=frozenset({"forgets-stops"}),
    ),
    Mutant("believes any clock", shows=34, disasters=(3, 5), make_conversation=worker.BelievesAnyClock),
    Mutant("does not sync its disk", shows=8, disasters=(3, 5), switches=frozenset({"no-sync"})),
    Mutant(
        "leaves its former self in charge",
        shows=35,
        disasters=(3, 5),
        make_scheduler=scheduler.LeavesItsFormerSelfInCharge,
    ),
    Mutant("copies lead under one epoch", shows=13, disasters=(3, 5), make_scheduler=scheduler.StepsByOne),
    Mutant("does not take up campaigns after a restart", switches=frozenset({"forgets-campaigns"})),
)
