"""The parts of trio that the index uses, on virtual time and a plain event heap: about a tenth of trio's cost per step.

`world.product` imports the index with this module in place of trio, so the code that runs is the product's own. Names and semantics are
trio's; what the index does not use is missing. Tasks continue in the order in which they were woken, and timers due at the same instant
fire in the order in which they were set: the same program with the same seeds runs identically. An uncaught error ends the run.
"""

from __future__ import annotations

import heapq
import math
import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import SimpleNamespace, TracebackType
from typing import Any, Final

from protocol.errors import LocalProtocolError

MOST_AT_ONCE: Final = 1_000_000
"""Maximum steps at one instant; more indicate an endless loop."""


class Cancelled(BaseException):
    """Thrown into a task whose scope was cancelled."""

    def __init__(self, scope: CancelScope) -> None:
        self.scope = scope


class TooSlowError(Exception):
    """A `fail_after` timed out."""


class BrokenResourceError(Exception):
    """The other end is closed."""


class ClosedResourceError(Exception):
    """This end is closed."""


class _Kernel:
    """The clock, the timers, and the tasks that can continue."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, int, Callable[[Any, Any], None], Any, Any]] = []
        self.asked = 0
        self.ready: deque[tuple[Task, Any, BaseException | None]] = deque()
        self.task: Task | None = None
        self.steps = 0

    def at(self, when: float, do: Callable[[Any, Any], None], one: Any, other: Any) -> None:
        self.asked += 1
        heapq.heappush(self.due, (when, self.asked, do, one, other))


_kernel = _Kernel()


def run(main: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Any:
    """Run `main` on a new clock that starts at 0, and return its result; any other work under way is dropped."""
    global _kernel
    kernel = _kernel = _Kernel()
    task = Task(main(*arguments), None, None)
    kernel.ready.append((task, None, None))
    ready, due, at_once = kernel.ready, kernel.due, 0
    while not task.done:
        while ready:
            each, value, error = ready.popleft()
            at_once += 1
            if at_once > MOST_AT_ONCE:
                raise LocalProtocolError(f"at {kernel.now:.3f} s it goes round and round")
            each.step(value, error)
            if task.done:
                break
        if not task.done:
            if not due:
                raise LocalProtocolError(f"at {kernel.now:.3f} s nothing is left to wait for")
            when, _, do, one, other = heapq.heappop(due)
            if when > kernel.now:
                kernel.now = when
                kernel.steps, at_once = kernel.steps + at_once, 0
            do(one, other)
    if task.error is not None:
        raise task.error
    return task.result


def current_time() -> float:
    """Virtual seconds since the start of the run."""
    return _kernel.now


def steps() -> int:
    """Number of task steps in this run."""
    return _kernel.steps


class Task:
    """A running coroutine. Waits are numbered, so that a wake-up that comes too late for its wait is ignored."""

    __slots__ = ("coro", "done", "error", "nursery", "result", "scope", "shielded", "waiting", "waits")

    def __init__(
        self, coro: Coroutine[Any, Any, Any], nursery: Nursery | None, scope: CancelScope | None
    ) -> None:
        self.coro = coro
        self.nursery = nursery
        self.scope = scope
        self.waits = 0
        self.waiting = False
        self.shielded = False
        self.done = False
        self.error: BaseException | None = None
        self.result: Any = None
        if scope is not None:
            scope.tasks[self] = None

    def step(self, value: Any, error: BaseException | None) -> None:
        kernel, before = _kernel, _kernel.task
        kernel.task = self
        try:
            if error is None:
                self.coro.send(value)
            else:
                self.coro.throw(error)
        except StopIteration as end:
            self._end(end.value, None)
        except BaseException as exc:  # noqa: BLE001  whatever it was, the nursery raises it
            self._end(None, exc)
        finally:
            kernel.task = before

    def _end(self, result: Any, error: BaseException | None) -> None:
        self.done, self.result, self.error = True, result, error
        if self.scope is not None:
            self.scope.tasks.pop(self, None)
        if self.nursery is not None:
            self.nursery._ended(error)

    def enter(self, scope: CancelScope | None) -> None:
        if self.scope is not None:
            self.scope.tasks.pop(self, None)
        self.scope = scope
        if scope is not None:
            scope.tasks[self] = None

    def wake(self, number: int, value: Any = None, error: BaseException | None = None) -> bool:
        """Let it continue if it is still in the wait with that number."""
        if not self.waiting or self.waits != number:
            return False
        self.waiting = False
        _kernel.ready.append((self, value, error))
        return True


@types.coroutine
def _park() -> Generator[None, Any, Any]:
    """Wait until the task prepared by `_begin` is woken."""
    return (yield None)


def _begin() -> Task:
    """The running task, about to wait. Raises `Cancelled` if its scope is already cancelled."""
    task = _kernel.task
    assert task is not None, "not in a task"
    scope = task.scope
    if scope is not None and scope.reason is not None and not task.shielded:
        raise Cancelled(scope.reason)
    task.waits += 1
    task.waiting = True
    return task


def _wake(task: Task, number: int) -> None:
    task.wake(number)


async def checkpoint() -> None:
    """Let other tasks run first."""
    task = _begin()
    task.wake(task.waits)
    await _park()


async def sleep(seconds: float) -> None:
    """Wait for that many seconds."""
    task = _begin()
    _kernel.at(_kernel.now + max(0.0, seconds), _wake, task, task.waits)
    await _park()


async def sleep_forever() -> None:
    """Wait until cancelled."""
    _begin()
    await _park()


lowlevel: Final = SimpleNamespace(checkpoint=checkpoint)


# -- scopes ---------------------------------------------------------------------------------------------------------------


class CancelScope:
    """Code inside the scope ends when the scope is cancelled or its deadline passes."""

    __slots__ = ("cancelled_caught", "children", "deadline", "fails", "parent", "reason", "tasks")

    def __init__(self, *, deadline: float = math.inf, fails: bool = False) -> None:
        self.deadline = deadline
        self.fails = fails
        self.parent: CancelScope | None = None
        self.reason: CancelScope | None = None
        """The outermost cancelled scope that contains this one."""
        self.tasks: dict[Task, None] = {}
        """Tasks whose innermost scope this is."""
        self.children: dict[CancelScope, None] = {}
        self.cancelled_caught = False

    def __enter__(self) -> CancelScope:
        task = _kernel.task
        assert task is not None, "not in a task"
        parent = self.parent = task.scope
        if parent is not None:
            parent.children[self] = None
            self.reason = parent.reason
        task.enter(self)
        if self.deadline <= _kernel.now:
            self.cancel()
        elif self.deadline < math.inf:
            _kernel.at(self.deadline, _passed, self, None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        task, parent = _kernel.task, self.parent
        assert task is not None
        task.enter(parent)
        self.deadline = math.inf
        if parent is not None:
            parent.children.pop(self, None)
        if isinstance(error, Cancelled) and error.scope is self:
            self.cancelled_caught = True
            if self.fails:
                raise TooSlowError
            return True
        return False

    def cancel(self) -> None:
        """End the code inside the scope."""
        if self.reason is None:
            self._spread(self)

    def _spread(self, reason: CancelScope) -> None:
        self.reason = reason
        for task in list(self.tasks):
            if not task.shielded:
                task.wake(task.waits, None, Cancelled(reason))
        for child in list(self.children):
            child._spread(reason)


def _passed(scope: CancelScope, _: None) -> None:
    if scope.deadline < math.inf:
        scope.cancel()


def move_on_at(deadline: float) -> CancelScope:
    """End the block at `deadline`."""
    return CancelScope(deadline=deadline)


def move_on_after(seconds: float) -> CancelScope:
    """End the block after `seconds`."""
    return CancelScope(deadline=_kernel.now + seconds)


def fail_after(seconds: float) -> CancelScope:
    """End the block after `seconds`, with `TooSlowError`."""
    return CancelScope(deadline=_kernel.now + seconds, fails=True)


# -- nurseries --------------------------------------------------------------------------------------------------------------


class _Started:
    def __init__(self) -> None:
        self.event = Event()
        self.value: Any = None

    def started(self, value: Any = None) -> None:
        self.value = value
        self.event.set()


class _Ignored:
    def started(self, value: Any = None) -> None:
        """Nothing waits for it."""


TASK_STATUS_IGNORED: Final = _Ignored()


class Nursery:
    """Tasks that all end before the block does."""

    def __init__(self) -> None:
        self.cancel_scope = CancelScope()
        self._running = 0
        self._error: BaseException | None = None
        self._parent: tuple[Task, int] | None = None

    def start_soon(self, work: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        coro: Any = work(*arguments)
        self._spawn(coro)

    async def start(self, work: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        status = _Started()
        coro: Any = work(*arguments, task_status=status)
        self._spawn(coro)
        await status.event.wait()
        return status.value

    def _spawn(self, coro: Coroutine[Any, Any, Any]) -> None:
        self._running += 1
        _kernel.ready.append((Task(coro, self, self.cancel_scope), None, None))

    def _ended(self, error: BaseException | None) -> None:
        self._running -= 1
        if error is not None and not isinstance(error, Cancelled):
            self._error = self._error or error
            self.cancel_scope.cancel()
        if not self._running and self._parent is not None:
            task, number = self._parent
            task.wake(number)

    async def __aenter__(self) -> Nursery:
        self.cancel_scope.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        task, scope = _kernel.task, self.cancel_scope
        assert task is not None
        if error is not None:
            scope.cancel()
        shielded, task.shielded = task.shielded, True
        task.enter(scope.parent)
        while self._running:
            task.waits += 1
            task.waiting = True
            self._parent = task, task.waits
            await _park()
        self._parent = None
        task.shielded = shielded
        task.enter(scope)
        swallowed = scope.__exit__(kind, error, trace)
        if self._error is not None and (error is None or isinstance(error, Cancelled)):
            raise self._error
        if swallowed or error is not None:
            return swallowed
        outer = scope.parent.reason if scope.parent is not None else None
        if outer is not None and not shielded:
            raise Cancelled(outer)
        return False


def open_nursery() -> Nursery:
    """A nursery, to be entered with `async with`."""
    return Nursery()


# -- events, locks and channels -----------------------------------------------------------------------------------------------


class Event:
    """Once set, it stays set."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: list[tuple[Task, int]] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for task, number in waiting:
            task.wake(number)

    async def wait(self) -> None:
        task = _begin()
        if self._set:
            task.wake(task.waits)
        else:
            self._waiting.append((task, task.waits))
        await _park()


class Lock:
    """A fair lock."""

    def __init__(self) -> None:
        self._held = False
        self._waiting: deque[tuple[Task, int]] = deque()

    async def __aenter__(self) -> None:
        task = _begin()
        if self._held:
            self._waiting.append((task, task.waits))
        else:
            self._held = True
            task.wake(task.waits)
        await _park()

    async def __aexit__(self, *_: object) -> None:
        while self._waiting:
            task, number = self._waiting.popleft()
            if task.wake(number):
                return
        self._held = False


class _Channel:
    """Both ends of an unbounded channel."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._closed = False
        self._waiting: deque[tuple[Task, int]] = deque()

    def send_nowait(self, item: Any) -> None:
        if self._closed:
            raise BrokenResourceError
        while self._waiting:
            task, number = self._waiting.popleft()
            if task.wake(number, item):
                return
        self._items.append(item)

    async def receive(self) -> Any:
        task = _begin()
        if self._items:
            task.wake(task.waits, self._items.popleft())
        else:
            self._waiting.append((task, task.waits))
        return await _park()

    def __enter__(self) -> _Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True


class _OpenChannel:
    def __getitem__(self, kind: object) -> _OpenChannel:
        return self

    def __call__(self, size: float) -> tuple[_Channel, _Channel]:
        assert size == math.inf
        channel = _Channel()
        return channel, channel


open_memory_channel: Final = _OpenChannel()
MemorySendChannel = MemoryReceiveChannel = _Channel
TaskStatus = _Started
