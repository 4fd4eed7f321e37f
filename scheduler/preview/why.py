"""Why a campaign stands as it stands, task by task, those with the same story told once. Pure: from the store, and from who is there now.

37 tasks (3, 5, 8-42) wait for a device, for 1:12
  yolo × GPU (CoreML)
  0 of 5 devices fit
    …
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict

from protocol.formats.phase import Phase
from protocol.messages.work import MAX_PREEMPTIONS
from protocol.values.advert import Advert
from protocol.values.attempt import TaskState
from protocol.values.lease import AGEING_S, MAX_AGEING, PREEMPT_GAP
from protocol.values.match import match
from protocol.values.requirement import Requirement
from protocol.values.task import Task
from protocol.words import asks_for_it
from results.row.simulated import marked, shown_name
from scheduler.core.allocator import ELSEWHERE_S
from scheduler.core.explain import LACKS_SIBLING, explain
from scheduler.core.ranking import LEAST_AHEAD
from scheduler.store.progress import ADOPTED, ENDED, attempt_words, nobody_line, progress_text
from scheduler.store.rows import AttemptRow, AttemptState, CampaignOutcome, CampaignRow, EventRow, TaskRow
from swarm.base.text import ordinal, safe_text
from swarm.base.units import show_elapsed, show_estimate

MAX_TRIED: Final = 8
"""Lines about attempts for each story."""
MAX_NAMES: Final = 4
_THERE: Final = "there now and fit"
_PLACES: Final = "their places in the queues"
"""Stands in a story for what differs from ticket to ticket, so that it is told in one line."""
_HEADS: Final[dict[TaskState, tuple[str, str]]] = {
    TaskState.PENDING: ("waits for a device", "wait for a device"),
    TaskState.COMMITTING: ("is being offered to a device", "are being offered to a device"),
    TaskState.QUEUED: ("waits for its turn", "wait for their turn"),
    TaskState.LEASED: ("has a place", "have a place"),
    TaskState.RUNNING: ("runs", "run"),
    TaskState.SUCCEEDED: ("is done", "are done"),
    TaskState.FAILED: ("failed", "failed"),
    TaskState.CANCELLED: ("is cancelled", "are cancelled"),
}
_ORDER: Final = tuple(_HEADS)


class TaskStory(BaseModel):
    """Tasks that stand alike for the same reason."""

    model_config = ConfigDict(frozen=True)

    tasks: tuple[int, ...]
    """Numbers, in order."""
    state: TaskState
    head: str
    since_s: float
    """How long the first of them has stood so."""
    what: tuple[str, ...]
    """Models and units."""
    why: tuple[str, ...]
    tried: tuple[str, ...]
    """Attempts so far, where there is something to learn from them."""


class WhyReport(BaseModel):
    """A whole campaign, or one task of it."""

    model_config = ConfigDict(frozen=True)

    campaign: str
    name: str
    head: str
    stories: tuple[TaskStory, ...]
    remarks: tuple[str, ...]
    """What concerns several of them: workers set aside, no scheduler process, a swarm that could not be looked at."""


class WhyDevice(BaseModel):
    """What is known beside the store."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    adverts: tuple[Advert, ...] | None
    """Who is there now; None: it was not looked at, for `blind`."""
    blind: str = ""
    busy: dict[str, int] = {}
    """Tasks of this home that devices have now, by the device's name."""
    scheduling: bool = True
    """A scheduler process runs on this home."""


def why(
    campaign: CampaignRow,
    tasks: Sequence[TaskRow],
    bodies: Mapping[str, Task],
    attempts: Sequence[AttemptRow],
    events: Iterable[EventRow],
    seen: WhyDevice,
    now: float,
    *,
    unplanned: Sequence[Requirement] = (),
) -> WhyReport:
    """The story of all `tasks`. `bodies`: of those that wait; `unplanned`: what a campaign without tasks yet looks for; `now` in wall s."""
    known = tuple(events)
    since = {task.id: campaign.created for task in tasks}
    since |= {event.task: event.at for event in known if event.task in since}
    tried: dict[str, list[AttemptRow]] = {}
    for attempt in attempts:
        tried.setdefault(attempt.task, []).append(attempt)
    teller = _Teller(campaign, bodies, seen, now, since, alone=len(tasks) == 1)
    groups: dict[tuple[object, ...], list[TaskRow]] = {}
    for task in tasks:
        groups.setdefault((task.state, *teller.reasons(task)), []).append(task)
    ordered = sorted(groups.items(), key=lambda item: (_ORDER.index(item[1][0].state), item[1][0].n))
    stories = tuple(teller.story(key[1:], alike, tried) for key, alike in ordered)
    remarks = [*_unplanned(campaign, tasks, unplanned, seen), *set_aside(known, now)]
    if any(task.state is TaskState.QUEUED for task in tasks):
        remarks.append(_priority_line(campaign.priority))
    waiting = campaign.ended is None
    if waiting and not seen.scheduling:
        remarks.insert(0, nobody_line(campaign.id))
    if seen.blind and any(task.state is TaskState.PENDING for task in tasks):
        remarks.append(f"The swarm could not be looked at: {safe_text(seen.blind)}")
    return WhyReport(
        campaign=campaign.id,
        name=marked(safe_text(campaign.name), asks_for_it(campaign.spec)),
        head=_head(campaign, tasks, now, scheduling=seen.scheduling),
        stories=stories,
        remarks=tuple(remarks),
    )


def _head(campaign: CampaignRow, tasks: Sequence[TaskRow], now: float, *, scheduling: bool) -> str:
    took = show_elapsed(max(0.0, (campaign.ended or now) - campaign.created))
    outcome = ADOPTED if campaign.outcome is CampaignOutcome.ADOPTED else str(campaign.outcome)
    how = f"{outcome} after {took}" if campaign.ended else f"running for {took}"
    if not campaign.ended and not scheduling:
        how = f"halted, begun {took} ago"
    if campaign.cancel and not campaign.ended:
        how = f"being cancelled, {how}"
    counts = Counter(task.state for task in tasks)
    told = ", ".join(f"{counts[state]} {state}" for state in TaskState if counts[state] and len(tasks) > 1)
    detail = f" ({safe_text(campaign.detail)})" if campaign.detail else ""
    return f"{how}, priority {campaign.priority}{': ' if told else ''}{told}{detail}"


def _unplanned(
    campaign: CampaignRow, tasks: Sequence[TaskRow], needs: Sequence[Requirement], seen: WhyDevice
) -> list[str]:
    """A campaign over devices has no tasks before it has seen them."""
    if tasks or campaign.planned or campaign.ended is not None:
        return []
    told = ["Its tasks follow from the devices that fit; they are being looked for."]
    for need in needs[:MAX_NAMES]:
        if seen.adverts is not None:
            told += explain(need, seen.adverts).splitlines()
    return told


class _Teller:
    """Puts one campaign into words."""

    def __init__(
        self,
        campaign: CampaignRow,
        bodies: Mapping[str, Task],
        seen: WhyDevice,
        now: float,
        since: Mapping[str, float],
        *,
        alone: bool,
    ) -> None:
        self._campaign = campaign
        self._bodies = bodies
        self._seen = seen
        self._now = now
        self._since = since
        self._alone = alone
        self._counts: dict[Requirement, tuple[str, ...]] = {}

    def story(
        self, why: Sequence[object], alike: Sequence[TaskRow], tried: Mapping[str, Sequence[AttemptRow]]
    ) -> TaskStory:
        state = alike[0].state
        what = Counter(f"{safe_text(task.model, 60)} × {safe_text(task.unit, 40)}" for task in alike)
        names = [name for name, _ in what.most_common(MAX_NAMES)]
        if len(what) > MAX_NAMES:
            names.append(f"and {len(what) - MAX_NAMES} more")
        many = len(alike) > 1
        numbers = tuple(task.n for task in alike)
        who = f"{len(alike)} tasks ({ranges(numbers)})" if many else f"Task {numbers[0]}"
        since_s = max(0.0, self._now - min(self._since[task.id] for task in alike))
        for_ = f", for {show_elapsed(since_s)}" if state not in ENDED else ""
        own = [attempt for task in alike for attempt in tried.get(task.id, ())]
        return TaskStory(
            tasks=numbers,
            state=state,
            head=f"{who} {_HEADS[state][many]}{for_}",
            since_s=since_s,
            what=tuple(names),
            why=tuple(self._places(alike) if line is _PLACES else str(line) for line in why),
            tried=tuple(_each(own, self._now) if self._alone else _together(own)),
        )

    def reasons(self, task: TaskRow) -> tuple[str, ...]:
        """Lines that say why this task stands so; tasks with the same lines are told together."""
        told: list[str] = []
        if task.cancel and task.state not in ENDED:
            told.append("it is being cancelled")
        match task.state:
            case TaskState.PENDING:
                told += self._pending(task)
            case TaskState.COMMITTING:
                told.append(f"{safe_text(task.device)} has not answered yet")
            case TaskState.QUEUED:
                told += self._queued(task)
            case TaskState.LEASED | TaskState.RUNNING:
                told.append(f"on {safe_text(task.device)}: {self._phase(task)}")
                told += [safe_text(task.note)] if task.note else []
            case TaskState.FAILED:
                reason = str(task.reason or "no reason was given")
                first, *more = task.detail.splitlines()[:40] or [""]
                told.append(": ".join(filter(None, [reason, safe_text(first, 1000)])))
                told += [_kept(line) for line in more]
            case _:
                pass
        if task.preempted and task.state not in ENDED:
            told.append(gave_way(task.preempted))
        return tuple(told)

    def _phase(self, task: TaskRow) -> str:
        if self._alone:
            return progress_text(task)
        return "waiting for the device" if task.phase is Phase.QUEUED else str(task.phase or "starting")

    def _pending(self, task: TaskRow) -> list[str]:
        told = [safe_text(task.note, 300)] if task.note else []
        body = self._bodies.get(task.id)
        if body is not None and body.note:
            told.append(safe_text(body.note))
        if task.tries:
            again = self._campaign.backoff_s * 2.0 ** (task.tries - 1)
            left = self._since[task.id] + again - self._now
            when = (
                f"again where it failed in {show_elapsed(left)}" if left >= 1 else "again where it failed now"
            )
            when += f", or up to {ELSEWHERE_S:g} s later while another device may yet take it"
            told.append(f"tried {task.tries} of {self._campaign.attempts} times; elsewhere at once, {when}")
        if body is not None and self._seen.adverts is not None:
            fits = self._fits(body.requirement)
            alone = body.replica is not None and body.note and not fits[0].startswith(_THERE)
            told += (LACKS_SIBLING,) if alone else fits
        elif not told:
            told.append("no device has been asked yet")
        return told

    def _fits(self, requirement: Requirement) -> tuple[str, ...]:
        if requirement not in self._counts:
            adverts = self._seen.adverts or ()
            fits = [advert for advert in adverts if match(requirement, advert).fits]
            if fits:
                shown = {safe_text(advert.name, 40): shown_name(advert, 40) for advert in fits}
                names = [f"{told}{self._load(name)}" for name, told in shown.items()]
                more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
                lines: tuple[str, ...] = (f"{_THERE}: {', '.join(names[:MAX_NAMES])}{more}",)
            else:
                lines = tuple(explain(requirement, adverts).splitlines())
            self._counts[requirement] = lines
        return self._counts[requirement]

    @staticmethod
    def _places(tasks: Sequence[TaskRow]) -> str:
        by_device: dict[str, list[str]] = {}
        for task in tasks:
            place = "" if task.position is None else ordinal(task.position)
            if task.start_s is not None:
                place += f" in {show_estimate(task.start_s)}"
            by_device.setdefault(safe_text(task.device, 40), []).append(place)
        told = [
            f"{device} {', '.join(filter(None, places))}".rstrip() for device, places in by_device.items()
        ]
        return f"at {'; '.join(told[:MAX_TRIED])}" + (
            f" and {len(told) - MAX_TRIED} more" if len(told) > MAX_TRIED else ""
        )

    def _load(self, device: str) -> str:
        count = self._seen.busy.get(device, 0)
        more = ": no more are kept there at a time" if count >= LEAST_AHEAD else ""
        return f" (has {count} task{'' if count == 1 else 's'} of yours{more})" if count else ""

    def _queued(self, task: TaskRow) -> list[str]:
        told = [f"at {safe_text(task.device)}: {progress_text(task)}"] if self._alone else [_PLACES]
        if task.note and safe_text(task.note, 300) not in told[0]:
            told.append(safe_text(task.note, 300))
        waited = int((self._now - self._since[task.id]) // AGEING_S)
        priority = self._campaign.priority
        aged = f", {min(waited, MAX_AGEING)} higher by waiting" if self._alone and waited > 0 else ""
        if aged:
            told.append(f"its priority counts as {priority}{aged}")
        return told


def _priority_line(priority: int) -> str:
    """What a queue goes by, once for all that wait in one."""
    turns = f"Priority {priority}: higher ones go first; among equals, whoever was served least lately."
    below = priority - PREEMPT_GAP
    return (
        f"{turns} Runs of priority {below} or less give way, unless they are being timed."
        if below >= 0
        else turns
    )


def gave_way(times: int) -> str:
    """Of a task that was preempted."""
    rest = MAX_PREEMPTIONS - times
    return f"gave way to a higher priority, {times} of at most {MAX_PREEMPTIONS} times" + (
        "" if rest > 0 else ": it does not again"
    )


def _kept(line: str) -> str:
    """A line of a small table: made safe, its columns left as they are."""
    return " ".join(safe_text(word, 300) for word in line.rstrip().split(" "))


# -- what was tried -----------------------------------------------------------------------------------------------------------------------


def _each(attempts: Sequence[AttemptRow], now: float) -> list[str]:
    return [
        f"attempt {attempt.attempt}: {attempt_words(attempt)} ({show_elapsed(max(0.0, (attempt.ended or now) - attempt.begun))})"
        for attempt in attempts
    ]


def _together(attempts: Iterable[AttemptRow]) -> list[str]:
    """The ends of attempts, each sort with its number; those that went well have nothing to tell."""
    quiet = (AttemptState.SUCCEEDED, AttemptState.GRANTED, AttemptState.QUEUED, AttemptState.INTENDED)
    counts = Counter(attempt_words(attempt) for attempt in attempts if attempt.state not in quiet)
    told = [
        f"{words}{f' ({number} times)' if number > 1 else ''}"
        for words, number in counts.most_common(MAX_TRIED)
    ]
    more = len(counts) - MAX_TRIED
    return [*told, f"and {more} more"] if more > 0 else told


def set_aside(events: Iterable[EventRow], now: float) -> list[str]:
    """Workers that are given nothing for a while, and those that were before."""
    latest: dict[str, EventRow] = {}
    times: Counter[str] = Counter()
    for event in events:
        peer = str(event.fields.get("peer", ""))
        if event.name == "worker.set-aside":
            latest[peer] = event
            times[peer] += 1
        elif event.name == "worker.back":
            latest.pop(peer, None)
    told = []
    for peer, event in latest.items():
        fields = event.fields
        seconds = fields.get("seconds", 0)
        left = event.at + (seconds if isinstance(seconds, (int, float)) else 0) - now
        device = safe_text(str(fields.get("device") or peer), 60)
        how = f"is set aside for another {show_elapsed(left)}" if left > 0 else "was set aside"
        often = f" ({times[peer]} times)" if times[peer] > 1 else ""
        told.append(f"{device} {how}{often}: {safe_text(str(fields.get('why', '')))}")
    return told


# -- for people --------------------------------------------------------------------------------------------------------------------------


def why_lines(told: WhyReport) -> list[str]:
    """All of it as lines; the first is about the campaign."""
    lines = [f"{told.campaign}  {told.name}  {told.head}"]
    for story in told.stories:
        lines += ["", story.head]
        lines += [f"  {name}" for name in story.what]
        lines += [f"    {line}" for line in story.why]
        lines += [f"    tried: {line}" for line in story.tried]
    if told.remarks:
        lines += ["", *told.remarks]
    return lines


def ranges(numbers: Iterable[int]) -> str:
    """`3, 5, 8-42`"""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    told = [str(low) if low == high else f"{low}-{high}" for low, high in spans]
    return ", ".join(told[:12]) + (" …" if len(told) > 12 else "")
