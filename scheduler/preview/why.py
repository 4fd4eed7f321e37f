"""Why a campaign's tasks are in the state they are in; tasks with the same reasons are one story. Pure.

37 tasks (3, 5, 8-42) wait for a device, for 1:12
  yolo × GPU (CoreML)
  0 of 5 devices fit
    …
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from protocol.formats.phase import Phase
from protocol.values.advert import Advert
from protocol.values.attempt import TaskState
from protocol.values.lease import AGEING_S, MAX_AGEING, MAX_PREEMPTIONS, PREEMPT_GAP
from protocol.values.match import match
from protocol.values.requirement import Requirement
from protocol.words import asks_for_simulated_unit
from results.row.form import JsonModel
from results.row.simulated import mark_simulated, shown_name
from scheduler.core.explain import LACKS_SIBLING, explain, listed, why_untrusted
from scheduler.core.retry import ELSEWHERE_S, retry_delay_s
from scheduler.preview.alike import AlikeTasks
from scheduler.store.progress import (
    ADOPTED,
    WAITS_FOR_SITTING,
    attempt_words,
    nobody_line,
    progress_text,
    waiting_text,
)
from scheduler.store.rows import (
    FAULTLESS_ATTEMPT_STATES,
    FINAL_TASK_STATES,
    AttemptRow,
    CampaignRow,
    CampaignStatus,
    EventRow,
    TaskRow,
)
from scheduler.trust.untrusted import untrusted_lines
from swarm.base.names import disambiguate_names
from swarm.base.text import count, ordinal, ranges, safe_columns, safe_text
from swarm.base.units import show_elapsed, show_estimate

if TYPE_CHECKING:
    from scheduler.preview.survey import SwarmVisit

MAX_TRIED: Final = 8
"""Most lines about attempts in each story."""
MAX_NAMES: Final = 4
SET_ASIDE: Final = ("worker.set-aside", "worker.back")
"""Events that tell which workers get no tasks for a while."""
_FITTING: Final = "there now and fit"
_QUEUES: Final = "their positions in the queues"
"""Placeholder in a story for what differs from task to task, so that all tasks share one line."""
_HEADS: Final[dict[TaskState, tuple[str, str]]] = {
    TaskState.PENDING: ("waits for a device", "wait for a device"),
    TaskState.COMMITTING: ("is being offered to a device", "are being offered to a device"),
    TaskState.QUEUED: ("waits in a queue", "wait in queues"),
    TaskState.LEASED: ("has a device", "have a device"),
    TaskState.RUNNING: ("runs", "run"),
    TaskState.SUCCEEDED: ("is done", "are done"),
    TaskState.FAILED: ("failed", "failed"),
    TaskState.CANCELLED: ("is cancelled", "are cancelled"),
}
_ORDER: Final = tuple(_HEADS)


class TaskStory(JsonModel):
    """Tasks that are in one state for the same reasons."""

    tasks: tuple[int, ...]
    """Numbers of the tasks, in order."""
    state: TaskState
    head: str
    since_s: float
    """Seconds since the first of these tasks entered this state."""
    what: tuple[str, ...]
    """Models and units of the tasks."""
    why: tuple[str, ...]
    tried: tuple[str, ...]
    """Earlier attempts that did not succeed. For a single task, all earlier attempts."""


class WhyReport(JsonModel):
    """Why a campaign, or one task of it, is in its state."""

    campaign: str
    name: str
    head: str
    stories: tuple[TaskStory, ...]
    remarks: tuple[str, ...]
    """Facts that concern several stories: workers set aside, no scheduler process, a swarm that cannot be reached."""


@dataclass(frozen=True, slots=True)
class LiveFacts:
    """What is known now beyond the store."""

    found: SwarmVisit | None
    """The survey of the swarm; None: not looked up, or `unreachable` says why not."""
    unreachable: str = ""
    busy: Mapping[str, int] = field(default_factory=dict)
    """The number of this home's tasks at each device now, by device name."""
    scheduling: bool = True
    """Whether a scheduler process runs on this home."""

    @property
    def adverts(self) -> tuple[Advert, ...] | None:
        """All adverts, trusted or not."""
        return None if self.found is None else (*self.found.adverts, *self.found.others)

    def most_at(self, worker: str | None) -> int | None:
        """The highest priority of this home's tasks there; None: the worker did not say."""
        answer = self.found.answers.get(worker or "") if self.found is not None else None
        return answer.most if answer is not None else None


def why_report(
    campaign: CampaignRow,
    tasks: Sequence[AlikeTasks],
    events: Iterable[EventRow],
    live: LiveFacts,
    now: float,
    *,
    unplanned: Sequence[Requirement] = (),
) -> WhyReport:
    """The stories of all `tasks`. `unplanned`: what a campaign without tasks yet searches for; `now`: wall seconds."""
    states = Counter[TaskState]()
    for each in tasks:
        states[each.first.state] += len(each.numbers)
    writer = _StoryWriter(campaign, live, now, alone=states.total() == 1)
    groups: dict[tuple[TaskState, tuple[str, ...]], list[AlikeTasks]] = {}
    for each in tasks:
        groups.setdefault((each.first.state, writer.reasons(each)), []).append(each)
    stories = [writer.story(reasons, alike) for (_, reasons), alike in groups.items()]
    stories.sort(key=lambda story: (_ORDER.index(story.state), story.tasks[0]))
    remarks = [*_unplanned(campaign, tasks, unplanned, live), *set_aside(events, now)]
    if states[TaskState.QUEUED]:
        queued_at = {
            each.first.worker: safe_text(each.first.device, 40)
            for each in tasks
            if each.first.state is TaskState.QUEUED
        }
        most = {device: live.most_at(worker) for worker, device in queued_at.items()}
        remarks.append(_priority_line(campaign.priority, most))
    if campaign.ended is None and not live.scheduling:
        remarks.insert(0, nobody_line(campaign.id))
    if live.found is not None and campaign.ended is None:
        remarks += untrusted_lines(live.found.untrusted)
    if live.unreachable and states[TaskState.PENDING]:
        remarks.append(f"The swarm cannot be reached: {safe_text(live.unreachable)}")
    return WhyReport(
        campaign=campaign.id,
        name=mark_simulated(safe_text(campaign.name), asks_for_simulated_unit(campaign.spec)),
        head=_head(campaign, states, now, scheduling=live.scheduling),
        stories=tuple(stories),
        remarks=tuple(remarks),
    )


def _head(campaign: CampaignRow, counts: Counter[TaskState], now: float, *, scheduling: bool) -> str:
    took = show_elapsed(max(0.0, (campaign.ended or now) - campaign.created))
    if campaign.ended:
        outcome = ADOPTED if campaign.outcome is CampaignStatus.ADOPTED else str(campaign.outcome)
        status = f"{outcome} after {took}"
    else:
        status = f"running for {took}" if scheduling else f"halted, submitted {took} ago"
        status = f"being cancelled, {status}" if campaign.cancel else status
    several = TaskState if counts.total() > 1 else ()
    states = ", ".join(f"{counts[state]} {state}" for state in several if counts[state])
    detail = f" ({safe_text(campaign.detail)})" if campaign.detail else ""
    return f"{status}, priority {campaign.priority}{': ' if states else ''}{states}{detail}"


def _unplanned(
    campaign: CampaignRow, tasks: Sequence[AlikeTasks], requirements: Sequence[Requirement], live: LiveFacts
) -> list[str]:
    """Lines for a campaign that has no tasks yet, since these depend on the devices found."""
    if campaign.planned or campaign.ended is not None:
        return []
    if tasks:
        return ["The campaign is still being planned: more tasks follow."]
    lines = ["The tasks depend on the devices that fit; the scheduler is looking for them."]
    for requirement in requirements[:MAX_NAMES] if live.adverts is not None else ():
        lines += explain(requirement, live.adverts or ()).splitlines()
    return lines


@dataclass(frozen=True, slots=True)
class _StoryWriter:
    """Puts one campaign into words."""

    campaign: CampaignRow
    live: LiveFacts
    now: float
    alone: bool
    _fits: dict[Requirement, tuple[str, ...]] = field(default_factory=dict)

    def story(self, reasons: Sequence[str], alike: Sequence[AlikeTasks]) -> TaskStory:
        state, what = alike[0].first.state, Counter[str]()
        for each in alike:
            for (model, unit), number in each.what.items():
                what[f"{safe_text(model, 60)} × {safe_text(unit, 40)}"] += number
        names = _cut([name for name, _ in what.most_common()], MAX_NAMES)
        numbers = tuple(sorted(number for each in alike for number in each.numbers))
        many = len(numbers) > 1
        who = f"{len(numbers)} tasks ({ranges(numbers)})" if many else f"Task {alike[0].first.n}"
        since_s = max(0.0, self.now - min(each.since for each in alike))
        duration = f", for {show_elapsed(since_s)}" if state not in FINAL_TASK_STATES else ""
        attempts = [attempt for each in alike for attempt in each.tried]
        return TaskStory(
            tasks=numbers,
            state=state,
            head=f"{who} {_HEADS[state][many]}{duration}",
            since_s=since_s,
            what=tuple(names),
            why=tuple(
                _queues([each.first for each in alike]) if line is _QUEUES else line for line in reasons
            ),
            tried=tuple(_each(attempts, self.now) if self.alone else _together(attempts)),
        )

    def reasons(self, alike: AlikeTasks) -> tuple[str, ...]:
        """Lines that say why these tasks are in their state; tasks with the same lines are one story."""
        task, lines = alike.first, list[str]()
        if (task.cancel or self.campaign.cancel) and task.state not in FINAL_TASK_STATES:
            lines.append("it is being cancelled")
        match task.state:
            case TaskState.PENDING:
                lines += self._pending(task, alike)
            case TaskState.COMMITTING:
                lines.append(f"{safe_text(task.device)} has not answered yet")
            case TaskState.QUEUED:
                lines += self._queued(task, alike.since)
            case TaskState.LEASED | TaskState.RUNNING:
                lines.append(f"on {safe_text(task.device)}: {self._phase(task)}")
                lines += [safe_text(task.note)] if task.note else []
            case TaskState.SUCCEEDED:
                lines += [safe_text(task.note)] if task.note else []
            case TaskState.FAILED:
                reason = str(task.reason or "no reason was given")
                first, *more = task.detail.splitlines()[:40] or [""]
                lines.append(": ".join(filter(None, [reason, safe_text(first, 1000)])))
                lines += map(safe_columns, more)
            case _:
                pass
        if task.preempted and task.state not in FINAL_TASK_STATES:
            lines.append(preemption_line(task.preempted))
        return tuple(lines)

    def _phase(self, task: TaskRow) -> str:
        if self.alone:
            return progress_text(task)
        return "waiting for the device" if task.phase is Phase.QUEUED else str(task.phase or "starting")

    def _pending(self, task: TaskRow, alike: AlikeTasks) -> list[str]:
        lines = [safe_text(waiting_text(task.note, self.now), 300)] if task.note else []
        if WAITS_FOR_SITTING.match(task.note):
            return lines
        body = alike.body
        if body is not None and body.note:
            lines.append(safe_text(body.note))
        if task.tries:
            backoff_s = retry_delay_s(self.campaign.backoff_s, task.tries)
            left_s = alike.since + backoff_s - self.now
            when = f"in {show_elapsed(left_s)}" if left_s >= 1 else "now"
            lines.append(
                f"tried {task.tries} of {self.campaign.attempts} times; may start elsewhere at once, and {when} also where it failed, "
                f"or up to {ELSEWHERE_S:g} s later while another device may still take it"
            )
        if body is not None and self.live.adverts is not None:
            fits = self._fitting(body.requirement, self.live.adverts)
            lacks_sibling = body.replica is not None and body.note and not fits[0].startswith(_FITTING)
            lines += (LACKS_SIBLING,) if lacks_sibling else fits
        elif not lines:
            lines.append("no device has been asked yet")
        return lines

    def _fitting(self, requirement: Requirement, adverts: Sequence[Advert]) -> tuple[str, ...]:
        if requirement not in self._fits:
            strangers = {advert.peer for advert in self.live.found.others} if self.live.found else set()
            fitting = [advert for advert in adverts if match(requirement, advert).fits]
            fits = [advert for advert in fitting if advert.peer not in strangers]
            labels = disambiguate_names({advert.peer: shown_name(advert, 40) for advert in fits})
            answers = self.live.found.answers if self.live.found else {}
            gone = [advert for advert in fits if advert.peer in answers and answers[advert.peer].gone]
            there = [advert for advert in fits if advert not in gone]
            names = [f"{labels[advert.peer]}{self._load(safe_text(advert.name, 40))}" for advert in there]
            lines = [f"{_FITTING}: {listed(names, ', ', MAX_NAMES)}"] if there else []
            if gone:
                verb = "fits but does not answer" if len(gone) == 1 else "fit but do not answer"
                lines.append(f"{verb}: {listed([labels[advert.peer] for advert in gone], ', ', MAX_NAMES)}")
            lines = lines or [why_untrusted(len(fitting))]
            if not fitting:
                lines = explain(requirement, adverts).splitlines()
            self._fits[requirement] = tuple(lines)
        return self._fits[requirement]

    def _load(self, device: str) -> str:
        from scheduler.core.ranking import LEAST_AHEAD

        number = self.live.busy.get(device, 0)
        full = ": no more are queued there at once" if number >= LEAST_AHEAD else ""
        return f" (has {count(number, 'task')} of yours{full})" if number else ""

    def _queued(self, task: TaskRow, since: float) -> list[str]:
        lines = [f"at {safe_text(task.device)}: {progress_text(task)}"] if self.alone else [_QUEUES]
        if task.note and safe_text(task.note, 300) not in lines[0]:
            lines.append(safe_text(task.note, 300))
        most = self.live.most_at(task.worker)
        priority = self.campaign.priority if most is None else min(self.campaign.priority, most)
        aged = int((self.now - since) // AGEING_S)
        if self.alone and aged > 0:
            higher = f"{min(aged, MAX_AGEING)} for waiting"
            lines.append(f"its priority counts as {priority} plus {higher}")
        return lines


def _queues(tasks: Sequence[TaskRow]) -> str:
    by_device: dict[str, list[str]] = {}
    for task in tasks:
        position = "" if task.position is None else ordinal(task.position)
        start = "" if task.start_s is None else f" in {show_estimate(task.start_s)}"
        by_device.setdefault(safe_text(task.device, 40), []).append(position + start)
    devices = [
        f"{device} {', '.join(filter(None, positions))}".rstrip() for device, positions in by_device.items()
    ]
    more = f" and {len(devices) - MAX_TRIED} more" if len(devices) > MAX_TRIED else ""
    return f"at {'; '.join(devices[:MAX_TRIED])}{more}"


def _cut(lines: list[str], most: int) -> list[str]:
    return lines if len(lines) <= most else [*lines[:most], f"and {len(lines) - most} more"]


def _priority_line(priority: int, most: Mapping[str, int | None]) -> str:
    """How queues are ordered, once for all queued tasks. `most`: by device, the highest priority there; None: not known."""
    capped = {device: cap for device, cap in most.items() if cap is not None and cap < priority}
    there = listed([f"{cap} at {device}" for device, cap in capped.items()], ", ", MAX_NAMES)
    counts = f", which counts as {there}, the most that its ticket permits" if capped else ""
    if None in most.values():
        counts += (
            ", and elsewhere as no more than a ticket permits"
            if capped
            else ", or less where a ticket permits less"
        )
    order = f"Priority {priority}{counts}: higher priorities go first; among equals, the user who was served least recently."
    below = min([priority, *capped.values()]) - PREEMPT_GAP
    if below < 0 or None in most.values():
        return order
    return f"{order} Runs of priority {below} or less give way, unless they are being timed."


def preemption_line(times: int) -> str:
    """The line for a task that was preempted."""
    last = "" if times < MAX_PREEMPTIONS else ": it will not be preempted again"
    return f"preempted by a higher priority, {times} of at most {MAX_PREEMPTIONS} times{last}"


# -- attempts ----------------------------------------------------------------------------------------------------------------------------


def _each(attempts: Sequence[AttemptRow], now: float) -> list[str]:
    return [
        f"attempt {attempt.attempt}: {attempt_words(attempt)} ({show_elapsed(max(0.0, (attempt.ended or now) - attempt.begun))})"
        for attempt in attempts
    ]


def _together(attempts: Iterable[AttemptRow]) -> list[str]:
    """The ends of attempts that did not go well, each kind with its count."""
    counts = Counter(
        attempt_words(attempt) for attempt in attempts if attempt.state not in FAULTLESS_ATTEMPT_STATES
    )
    lines = [f"{words} ({number} times)" if number > 1 else words for words, number in counts.most_common()]
    return _cut(lines, MAX_TRIED)


def set_aside(events: Iterable[EventRow], now: float) -> list[str]:
    """Lines for workers that are set aside, and for those whose time is over without a `worker.back` event."""
    latest: dict[str, EventRow] = {}
    times: Counter[str] = Counter()
    for event in events:
        peer = str(event.fields.get("peer", ""))
        if event.name == "worker.set-aside":
            latest[peer] = event
            times[peer] += 1
        elif event.name == "worker.back":
            latest.pop(peer, None)
    lines = []
    for peer, event in latest.items():
        seconds = event.fields.get("seconds", 0)
        left = event.at + (seconds if isinstance(seconds, (int, float)) else 0) - now
        device = safe_text(str(event.fields.get("device") or peer), 60)
        how = f"is set aside for another {show_elapsed(left)}" if left > 0 else "was set aside"
        often = f" ({times[peer]} times)" if times[peer] > 1 else ""
        lines.append(f"{device} {how}{often}: {safe_text(str(event.fields.get('why', '')))}")
    return lines


# -- for people --------------------------------------------------------------------------------------------------------------------------


def why_lines(report: WhyReport) -> list[str]:
    """The whole report as lines; the first is about the campaign."""
    lines = [f"{report.campaign}  {report.name}  {report.head}"]
    for story in report.stories:
        lines += ["", story.head]
        lines += [f"  {name}" for name in story.what]
        lines += [f"    {line}" for line in story.why]
        lines += [f"    tried: {line}" for line in story.tried]
    return [*lines, "", *report.remarks] if report.remarks else lines
