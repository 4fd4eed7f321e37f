"""A separate process for code that is not part of this program: limited in time, memory and output, and always cleaned up.

Frames are sent in both directions, each preceded by its length (8 bytes, little endian): orders on standard input, replies on standard
output. The code's own output goes to standard error, whose last part is kept. The process ends itself when standard input ends, so it never
outlives its parent.
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
"""Between two checks of the process's memory, and of whether it should be stopped."""
LEAVE_S: Final = 1.0
"""How long the process may take to exit after it closed its replies."""
TAIL: Final = 2000
"""How many bytes of its output are kept."""
MARK: Final = "SARK_APART"
"""The environment variable by which processes that it started are found again."""
SHARE: Final = 0.5
"""Share of this machine's memory that the process may use, including everything it started."""


class IsolatedProcessEnded(Exception):
    """Why there is no reply. The message continues a sentence whose subject is the process: `did not answer within 60 s`."""


class IsolatedProcessStopped(IsolatedProcessEnded):
    """The caller wanted the process stopped."""


class IsolatedProcess:
    """One separate process. Not for use by several threads at once."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        reply_bytes: int,
        memory_bytes: int | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """`reply_bytes`: limit of a frame; `memory_bytes`: limit for the process and everything it started, by default a share of this
        machine's memory; `stopped`: whether to stop, called every 0.2 s.

        Raises `IsolatedProcessEnded` if the process cannot be started.
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
                start_new_session=True,  # Ctrl-C in the terminal is for us, and the session can be ended
            )
        except OSError as why:
            raise IsolatedProcessEnded(f"cannot be started: {why.strerror or why}") from why
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._orders, self._pipes = self._process.stdin, (self._process.stdout, self._process.stderr)
        self._threads = [_thread(self._read), _thread(self._drain)]

    def __enter__(self) -> IsolatedProcess:
        return self

    def __exit__(self, *why: object) -> None:
        self.close()

    def tell(self, *frames: bytes) -> None:
        """Send frames, without waiting. `hear` raises if they did not arrive."""

        def write() -> None:
            with contextlib.suppress(OSError, ValueError):  # the process is gone
                for frame in frames:
                    put_frame(self._orders, frame)

        self._threads.append(_thread(write))

    def hear(self, within_s: float) -> bytes:
        """The next frame. Raises `IsolatedProcessEnded`; the process is gone then."""
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

    def _why_not(self, left_s: float, within_s: float) -> IsolatedProcessEnded | None:
        """Why to stop waiting for the process; None: keep waiting."""
        if self._stopped():
            return IsolatedProcessStopped("was stopped")
        if self._process.poll() is not None:  # another process that it started holds its pipes open
            return self._ended()
        if left_s <= 0:
            return IsolatedProcessEnded(f"did not answer within {within_s:g} s")
        if _memory_of(self._process.pid, self._memory_bytes) > self._memory_bytes:
            return IsolatedProcessEnded(f"took more than {self._memory_bytes / 2**30:.1f} GiB of memory")
        return None

    def _ended(self) -> IsolatedProcessEnded:
        try:
            code = self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            return IsolatedProcessEnded("closed its output without an answer")
        self.close()  # then its output is complete
        how = f"ended its process with exit code {code}" if code >= 0 else f"crashed ({_signal_name(-code)})"
        return IsolatedProcessEnded(": ".join(filter(None, [how, self.said])))

    @property
    def said(self) -> str:
        """The last line of the process's output."""
        lines = bytes(self._tail).decode("utf-8", "replace").strip().splitlines()
        return safe_text(lines[-1], 300) if lines else ""

    def close(self) -> None:
        """End the process and everything it started, as far as it can be found. May be called again."""
        self._closed = True
        below = _below(self._process.pid) if self._process.poll() is None else []
        if sys.platform == "win32":
            self._process.kill()
        else:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        for each in below:  # processes that left its group
            with contextlib.suppress(psutil.Error):
                each.kill()
        self._process.wait()
        until = time.monotonic() + LEAVE_S
        while any(map(_lives, below)) and time.monotonic() < until:
            time.sleep(0.005)
        if self._held_open(LOOK_S):  # by a process that escaped
            _kill_marked(self._mark)
        if not self._held_open(LEAVE_S):
            for pipe in (*self._pipes, self._orders):
                with contextlib.suppress(OSError):
                    pipe.close()

    def _held_open(self, wait_s: float) -> bool:
        """Whether a process still has the pipes open."""
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
    """Frames of at most `most` bytes, until the stream ends or is cut off."""
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
    """Kill processes that inherited the marked environment, even if they left the process's group and family."""
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if each.environ().get(MARK) == mark:
                each.kill()


def _memory_of(pid: int, much: int) -> int:
    """Bytes used by a process and all its descendants. If that could exceed `much`, shared pages count only once, which takes longer."""
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
