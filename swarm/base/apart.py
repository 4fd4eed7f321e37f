"""A process of its own for code that this program did not write: bounded in time, memory and what it prints, and gone afterwards.

Frames go both ways, each with its length before it (8 bytes, little endian): orders on standard input, replies on standard output. What
the code prints goes to standard error, of which the end is kept. When standard input ends, the process ends itself: it outlives nobody.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import IO, Final

import psutil

from swarm.base.text import safe_text

LENGTH: Final = 8
LOOK_S: Final = 0.2
"""Between two looks at its memory, and at whether somebody wants it stopped."""
LEAVE_S: Final = 1.0
"""How long it may take to be gone once it has closed its replies."""
TAIL: Final = 2000
"""Bytes of what it printed that are kept."""
MARK: Final = "SARK_APART"
"""The variable by which what it started is found again."""
SHARE: Final = 0.5
"""Share of this machine's memory that the process may take, with all that it started."""


class EndedApart(Exception):
    """Why there is no reply. The message goes on after whoever worked there: `did not answer within 60 s`."""


class StoppedApart(EndedApart):
    """Somebody wanted it stopped."""


class Apart:
    """One such process. Not for several threads at once."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        reply_bytes: int,
        memory_bytes: int | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """`reply_bytes`: of a frame. `memory_bytes`: of it and all that it started; by default a share of this machine's. `stopped`: asked
        every 0.2 s.

        Raises `EndedApart` if it cannot be started.
        """
        self._reply_bytes = reply_bytes
        self._memory_bytes = memory_bytes or int(SHARE * psutil.virtual_memory().total)
        self._stopped = stopped
        self._replies: queue.Queue[bytes | None] = queue.Queue(maxsize=4)
        self._tail = bytearray()
        self._closed = False
        self._mark = secrets.token_hex(8)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, MARK: self._mark},
                start_new_session=True,  # Ctrl-C in the terminal is for us, and all that it starts can be ended with it
            )
        except OSError as why:
            raise EndedApart(f"cannot be started: {why.strerror or why}") from why
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._orders, self._pipes = self._process.stdin, (self._process.stdout, self._process.stderr)
        self._threads = [_thread(self._read), _thread(self._drain)]

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *why: object) -> None:
        self.close()

    def tell(self, *frames: bytes) -> None:
        """Send frames; never waits. Whether they arrived, `hear` tells."""

        def write() -> None:
            with contextlib.suppress(OSError, ValueError):  # it is gone
                for frame in frames:
                    put_frame(self._orders, frame)

        self._threads.append(_thread(write))

    def hear(self, within_s: float) -> bytes:
        """The next frame. Raises `EndedApart`; it is gone then."""
        until = time.monotonic() + within_s
        while True:
            left_s = until - time.monotonic()
            try:
                reply = self._replies.get(timeout=max(0.0, min(left_s, LOOK_S)))
                why = self._ended() if reply is None else None
            except queue.Empty:
                reply, why = None, self._why_not(left_s, within_s)
            if why is not None:
                self.close()
                raise why
            if reply is not None:
                return reply

    def _why_not(self, left_s: float, within_s: float) -> EndedApart | None:
        """Why it is not waited for any longer; None: it is."""
        if self._stopped():
            return StoppedApart("was stopped")
        if self._process.poll() is not None:  # something that it started holds its pipes open
            return self._ended()
        if left_s <= 0:
            return EndedApart(f"did not answer within {within_s:g} s")
        if _memory_of(self._process.pid, self._memory_bytes) > self._memory_bytes:
            return EndedApart(f"took more than {self._memory_bytes / 2**30:.1f} GiB of memory")
        return None

    def _ended(self) -> EndedApart:
        try:
            code = self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            return EndedApart("closed its output without an answer")
        self.close()  # what it printed is complete then
        how = f"ended its process with exit code {code}" if code >= 0 else f"crashed ({_signal_name(-code)})"
        return EndedApart(": ".join(filter(None, [how, self.said])))

    @property
    def said(self) -> str:
        """The last line that it printed."""
        lines = bytes(self._tail).decode("utf-8", "replace").strip().splitlines()
        return safe_text(lines[-1], 300) if lines else ""

    def close(self) -> None:
        """End it and all that it started, as far as this can be found. May be called again."""
        self._closed = True
        below = _below(self._process.pid) if self._process.poll() is None else []
        if sys.platform == "win32":
            self._process.kill()
        else:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        for each in below:  # those that left its group
            with contextlib.suppress(psutil.Error):
                each.kill()
        self._process.wait()
        until = time.monotonic() + LEAVE_S
        while any(map(_lives, below)) and time.monotonic() < until:
            time.sleep(0.005)
        if self._held_open(LOOK_S):  # by something that got away
            _kill_marked(self._mark)
        if not self._held_open(LEAVE_S):
            for pipe in (*self._pipes, self._orders):
                with contextlib.suppress(OSError):
                    pipe.close()

    def _held_open(self, wait_s: float) -> bool:
        """Whether somebody has its pipes still."""
        for thread in self._threads:
            thread.join(wait_s)
        return any(thread.is_alive() for thread in self._threads)

    def _read(self) -> None:
        for frame in chain(frames_in(self._pipes[0], self._reply_bytes), (None,)):
            while not self._closed:
                with contextlib.suppress(queue.Full):
                    self._replies.put(frame, timeout=LOOK_S)
                    break

    def _drain(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := os.read(self._pipes[1].fileno(), 1 << 16):
                self._tail += data
                del self._tail[:-TAIL]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def frames_in(stream: IO[bytes], most: int) -> Iterator[bytes]:
    """Frames of at most `most` bytes, until the stream ends or breaks off."""
    with contextlib.suppress(OSError, ValueError):
        while len(head := stream.read(LENGTH)) == LENGTH:
            length = int.from_bytes(head, "little")
            body = stream.read(length) if length <= most else b""
            if len(body) != length:
                return
            yield body


def put_frame(stream: IO[bytes], body: bytes) -> None:
    stream.write(len(body).to_bytes(LENGTH, "little") + body)
    stream.flush()


def _below(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def _kill_marked(mark: str) -> None:
    """Kill processes that inherited the marked environment, even if they have left the process's group and family."""
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if each.environ().get(MARK) == mark:
                each.kill()


def _memory_of(pid: int, much: int) -> int:
    """Bytes of a process and all below it. Pages that they share count once, which takes longer: it is seen to where it may be `much`."""
    try:
        processes = [psutil.Process(pid), *_below(pid)]
    except psutil.Error:
        return 0
    resident: list[int] = []
    own: list[int] = []
    for each in processes:
        with contextlib.suppress(psutil.Error):
            resident.append(each.memory_info().rss)
    if sum(resident) <= much:
        return sum(resident)
    for each in processes:
        with contextlib.suppress(psutil.Error):
            own.append(each.memory_full_info().uss)
    return sum(own) + max((both - alone for both, alone in zip(resident, own, strict=False)), default=0)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
