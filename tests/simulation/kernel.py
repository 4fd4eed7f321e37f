"""Virtual time and processes that can be paused, slowed and killed: a small part of trio, pure and quick.

A process (`Process`) runs coroutines. They wait only with `sleep` and `Flag.wait`, measured on the process's own clock, which may be off
and drift. Work that is due while the process is paused is done when it continues; work in progress when it is killed is lost.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from protocol.errors import LocalProtocolError

MOST_AT_ONCE = 5_000
"""Maximum number of steps at one instant; more indicate an endless loop."""
Job = Coroutine[Any, Any, None]


class Kernel:
    """The only clock. Calls that are due at the same instant run in the order in which they were scheduled."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = 0

    def at(self, when: float, do: Callable[[], None]) -> None:
        """Call `do` at that time, or now if the time has passed."""
        self._asked += 1
        heapq.heappush(self._due, (max(self.now, when), self._asked, do))

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Call `do` in `seconds`."""
        self._asked += 1
        heapq.heappush(self._due, (self.now + seconds, self._asked, do))

    def run(self, until: float, done: Callable[[], bool]) -> None:
        """Run until that instant, or until `done` returns true, which is checked once a second."""
        look, steps, due = self.now, 0, self._due
        while due and due[0][0] <= until:
            when = due[0][0]
            if when >= look:
                look = when + 1.0
                if done():
                    return
            _, _, do = heapq.heappop(due)
            steps = steps + 1 if when < self.now + 1e-9 else 0
            if steps > MOST_AT_ONCE:
                raise LocalProtocolError(f"at {when:.3f} s it goes round and round")
            self.now = when
            do()
        self.now = max(self.now, until)


class Process:
    """A process of a machine: its clock, its life, and the coroutines that run in it."""

    def __init__(self, kernel: Kernel, name: str, *, offset: float = 0.0, rate: float = 1.0) -> None:
        self.kernel = kernel
        self.name = name
        self.offset = offset
        self.rate = rate
        self.alive = False
        self.paused_until = 0.0
        self.failed: Callable[[OSError], None] = lambda error: None
        """Called when the disk refused a write, which a process does not survive."""
        self.tasks: dict[_Task, None] = {}

    def now(self) -> float:
        """Seconds on its own monotonic clock."""
        return self.offset + self.rate * self.kernel.now

    def start(self) -> None:
        """Begin a new life."""
        self.alive = True
        self.paused_until = 0.0

    def kill(self) -> None:
        """Like kill -9: nothing of it continues."""
        self.alive = False
        tasks, self.tasks = self.tasks, {}
        for task in tasks:
            task.drop()

    def pause(self, seconds: float) -> None:
        """Like SIGSTOP, with a SIGCONT `seconds` later."""
        self.paused_until = max(self.paused_until, self.kernel.now + seconds)

    def spawn(self, job: Job) -> None:
        """Run a job beside the others, from this instant on."""
        task = _Task(self, job)
        self.tasks[task] = None
        self.resume(task, 0.0)

    def resume(self, task: _Task, seconds: float) -> None:
        """Let a task continue `seconds` (of real time) from now, or later if the process is paused then."""
        self.kernel.after(seconds, task.wake)

    def ended(self, task: _Task) -> None:
        self.tasks.pop(task, None)

    def sleep(self, seconds: float) -> _Sleep:
        """An awaitable that waits `seconds` on the process's own clock."""
        return _Sleep(max(0.0, seconds) / self.rate)


class _Task:
    """A running coroutine. Each wait has a number, so that a wake-up that comes too late for its wait is ignored."""

    def __init__(self, process: Process, job: Job) -> None:
        self.process = process
        self.waits = 0
        self._job = job

    def wake(self) -> None:
        """Continue once the process is not paused."""
        process = self.process
        if self not in process.tasks:
            return
        if process.paused_until > process.kernel.now:
            process.kernel.at(process.paused_until, self.wake)
            return
        self.waits += 1
        try:
            wait = self._job.send(None)
        except StopIteration:
            self.process.ended(self)
        except OSError as exc:
            self.process.ended(self)
            self.process.failed(exc)
        else:
            wait.begin(self)

    def drop(self) -> None:
        self.waits += 1
        self._job.close()


class _Sleep:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __await__(self) -> Generator[_Sleep, None, None]:
        yield self

    def begin(self, task: _Task) -> None:
        task.process.resume(task, self._seconds)


class Flag:
    """An event that stays set. Each waiter continues in its own process."""

    def __init__(self) -> None:
        self.is_set = False
        self._then: dict[Callable[[], None], None] = {}

    def set(self) -> None:
        """Wake all waiters."""
        if not self.is_set:
            self.is_set = True
            then, self._then = self._then, {}
            for do in then:
                do()

    def then(self, do: Callable[[], None]) -> None:
        """Call `do` when the flag is set."""
        self._then[do] = None

    def forget(self, do: Callable[[], None]) -> None:
        """Do not call `do` any more."""
        self._then.pop(do, None)

    async def wait(self, process: Process, max_wait_s: float | None = None) -> bool:
        """Wait for the flag; returns whether it was set in time. `max_wait_s` is on the process's own clock; None: no limit."""
        if not self.is_set:
            await _Wait(self, None if max_wait_s is None else max(0.0, max_wait_s) / process.rate)
        return self.is_set


class _Wait:
    def __init__(self, flag: Flag, seconds: float | None) -> None:
        self._flag = flag
        self._seconds = seconds
        self._task: _Task | None = None
        self._number = 0

    def __await__(self) -> Generator[_Wait, None, None]:
        yield self

    def begin(self, task: _Task) -> None:
        self._task, self._number = task, task.waits
        self._flag.then(self.go)
        if self._seconds is not None:
            task.process.kernel.after(self._seconds, self.go)

    def go(self) -> None:
        task = self._task
        if task is not None and task.waits == self._number:
            self._task = None
            self._flag.forget(self.go)
            task.process.resume(task, 0.0)
