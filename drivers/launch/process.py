"""The parent's end of the child processes: start a zygote, fork a launch, read its frames, kill it.

`drivers.launch.launch` decides what to run and for how long; this module only handles processes. `drivers.launch.spawn` replaces it where
there is no fork.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Final, Protocol

from drivers.contract import frames
from drivers.contract.base import Crashed
from drivers.contract.boot import boot_command, clean_environment
from drivers.sandbox import cleanup

KILL_S: Final = 2.0
"""How long a killed launch may take to end before its group is killed without its reaper."""
CLOSE_S: Final = 0.3
"""How long an idle zygote may take to notice that its node has hung up. A zygote that is still importing is killed."""
ANSWER_MS: Final = 500
"""How long a zygote may take to say whether it would prepare a launch. It takes 0.1 ms unless the machine is overloaded."""
READ_BYTES: Final = 1 << 16
MAX_POLL_S: Final = 60.0
"""poll(2) counts milliseconds in 31 bits, but a limit may be a year."""
OUTPUT_TAIL: Final = 1500


class Child(Protocol):
    """One launch as its parent sees it."""

    def frames(self, deadline: Callable[[], float]) -> Iterator[bytes]:
        """Yield frames until the process and all below it are gone. Raises TimeoutError past `deadline()` (monotonic seconds),
        `frames.Garbled` for invalid data."""
        ...

    def kill(self) -> None:
        """End the launch and everything below it; returns when they are gone. Any thread may call it, any number of times."""
        ...

    def close(self) -> str:
        """Kill the launch, remove its private folder, release everything. Returns the end of its output."""
        ...

    def give_turn(self) -> None:
        """Let a launch that takes turns run one block; never waits. Whether the launch is still there shows in `frames`."""
        ...

    def end_turns(self) -> None:
        """Say that there are no more turns."""
        ...

    @property
    def code(self) -> int | None:
        """Exit code, negative for a signal; None if unknown."""
        ...


class ForkedChild:
    """A launch forked from a zygote: a reaper with a worker below it. `control` is this end of the reaper's socket."""

    def __init__(
        self,
        control: socket.socket,
        events: int,
        log: IO[bytes],
        folder: str,
        output_bytes: int,
        turns: int | None = None,
    ) -> None:
        """`turns`: the writing end of the launch's token pipe. Only the launch holds the other end."""
        self._turns = turns
        if turns is not None:
            os.set_blocking(turns, False)
        self._control = control
        self._events = events
        self._log = log
        self._folder = folder
        self._frames = frames.Reassembler(output_bytes)
        self._reply = b""
        """The reaper's lines: the worker's process id, then the worker's exit code."""
        self._lock = threading.Lock()
        self._closed = False
        os.set_blocking(events, False)
        control.setblocking(False)

    @property
    def code(self) -> int | None:
        lines = self._reply.split(b"\n")
        return int(lines[1]) if len(lines) > 2 else None

    def frames(self, deadline: Callable[[], float]) -> Iterator[bytes]:
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._events, select.POLLIN)
        ended = False
        while not ended:
            left = deadline() - time.monotonic()
            if left <= 0:
                raise TimeoutError
            ready = {fd for fd, _ in poller.poll(math.ceil(min(left, MAX_POLL_S) * 1000))}
            ended = self._control.fileno() in ready and self._read_reply()
            if self._events in ready or ended:  # once all below the reaper are dead, the pipe holds the rest
                while (data := self._read()) is not None:
                    if not data:
                        with contextlib.suppress(KeyError):
                            poller.unregister(self._events)
                        break
                    yield from self._frames.feed(data)

    def _read(self) -> bytes | None:
        try:
            return os.read(self._events, READ_BYTES)
        except BlockingIOError:
            return None

    def _read_reply(self) -> bool:
        """Read the reaper's reply. True when the reaper is gone, or has reported the worker's exit code."""
        try:
            data = self._control.recv(64)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True
        self._reply += data[: 64 - len(self._reply)]
        return not data or self.code is not None

    def kill(self) -> None:
        """Shut down the socket, which orders the reaper to kill everything. The reaper's hang-up confirms that nothing is left."""
        with self._lock:
            if self._closed or self.code is not None:
                return
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_WR)
            poller = select.poll()
            poller.register(self._control, 0)  # POLLHUP alone: the data is for frames()
            if not poller.poll(KILL_S * 1000):
                self._kill_worker()

    def _kill_worker(self) -> None:
        """Kill the worker when its reaper does not respond."""
        self._read_reply()
        lines = self._reply.split()
        if lines and int(lines[0]) > 1:  # any other number is no process of ours, or means all processes
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(OSError):
                    kill(int(lines[0]), signal.SIGKILL)

    def give_turn(self) -> None:
        if self._turns is not None:
            with contextlib.suppress(
                BrokenPipeError, BlockingIOError
            ):  # full: the child wrote into it, through /proc/self/fd
                os.write(self._turns, frames.TURN)

    def end_turns(self) -> None:
        if self._turns is not None:
            os.close(self._turns)
            self._turns = None

    def close(self) -> str:
        self.kill()
        self.end_turns()
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        while not self._read_reply() and poller.poll(KILL_S * 1000):
            pass
        if self.code is None:  # the reaper was killed before it could sweep
            self._kill_worker()
        with self._lock:
            self._closed = True
            self._control.close()
            os.close(self._events)
        output = output_tail(self._log)
        cleanup.remove(self._folder)
        return output


def output_tail(log: IO[bytes]) -> str:
    """The end of a process's output, as printable text; closes the file."""
    with log:
        log.seek(0, os.SEEK_END)
        log.seek(max(0, log.tell() - OUTPUT_TAIL))
        text = log.read(OUTPUT_TAIL).decode(errors="replace")
    return "".join(letter if letter.isprintable() or letter == "\n" else "�" for letter in text).strip()


@contextlib.contextmanager
def starting() -> Iterator[contextlib.ExitStack]:
    """Undo what the block put on the stack when the block fails. A shortage on this device (files, processes, space) becomes `Crashed`."""
    with contextlib.ExitStack() as undo:
        try:
            yield undo
        except OSError as why:
            raise Crashed(f"this device cannot start a process for the run: {why.strerror or why}") from why
        undo.pop_all()


def private_folder(undo: contextlib.ExitStack) -> str:
    """A new folder for one launch. On failure it is removed by rmdir, which needs no open file: too many open files may be the cause."""
    folder = tempfile.mkdtemp(prefix="sark-run-")

    def remove() -> None:
        with contextlib.suppress(OSError):
            Path(folder).rmdir()

    undo.callback(remove)
    return folder


class ZygoteProcess:
    """A running `drivers.launch.zygote`. It starts at once, and forks as soon as its imports are done."""

    def __init__(
        self,
        driver: str,
        simulate: bool,
        preload: bool,
        tier: str = "best",
        private: Mapping[str, str] | None = None,
        prefork: int = 0,
        device_lock: str = "",
    ) -> None:
        """`tier`: the sandbox of its launches (`enter.Tier`), or `best`: the best that it can enter. `private`: environment variables of
        this driver alone. `prefork`: launches to prepare in advance while nobody holds the lock file `device_lock`; empty: while the zygote
        is idle.

        Raises `Crashed` if this device cannot start another process.
        """
        with starting() as undo:
            self._socket, theirs = socket.socketpair()
            undo.enter_context(self._socket)
            with theirs:
                self._log = undo.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
                options = (str(int(simulate)), tier, str(prefork), device_lock, str(int(preload)))
                self._process = subprocess.Popen(
                    self.command(str(theirs.fileno()), driver, *options),
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                    env=clean_environment(os.environ) | dict(private or {}),
                    cwd="/",
                    start_new_session=True,  # Ctrl-C is for the node, which ends the zygote in order
                )
        self._sending = threading.Lock()

    @staticmethod
    def command(*arguments: str) -> list[str]:
        """The zygote's command line; `arguments` are those of `drivers.launch.zygote.main`."""
        return boot_command("launch.zygote", *arguments)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the zygote can still fork."""
        return self._process.poll() is None

    def fork(self, order_bytes: bytes, output_bytes: int, *, in_turns: bool = False) -> ForkedChild:
        """Start one launch in a private folder of its own. `in_turns`: the launch waits for `ForkedChild.give_turn`.

        Raises `Crashed` if the zygote is gone, or this device cannot start another launch.
        """
        with starting() as undo:
            folder = private_folder(undo)
            log = undo.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            control, reapers = socket.socketpair()
            undo.enter_context(control)
            with reapers, contextlib.ExitStack() as theirs:
                events, workers = os.pipe()
                undo.callback(os.close, events)
                theirs.callback(os.close, workers)
                fds, turns = [reapers.fileno(), workers, log.fileno()], None
                if in_turns:
                    token, turns = os.pipe()
                    undo.callback(os.close, turns)
                    theirs.callback(os.close, token)
                    fds.append(token)
                try:
                    request = os.fsencode(folder) + b"\0" + order_bytes
                    with self._sending:
                        frames.send_request(self._socket, request, fds)
                except OSError as why:
                    raise Crashed(f"the process that launches drivers is gone: {why}") from why
            return ForkedChild(control, events, log, folder, output_bytes, turns)

    def prepare(self, lock: int) -> None:
        """Have the zygote prepare a launch if none is prepared. `lock`: descriptor of the device's lock, held and open here. The zygote
        shares it until the launch is prepared. A zygote that does not answer does not get it: a stopped one would never release the
        lock."""
        # the next launch finds out that the zygote is gone or closed
        with contextlib.suppress(OSError, ValueError), self._sending:
            with contextlib.suppress(BlockingIOError):
                self._socket.recv(READ_BYTES, socket.MSG_DONTWAIT)  # an answer that came too late
            frames.send_request(self._socket, b"", [])
            answers = select.poll()
            answers.register(self._socket, select.POLLIN)
            if answers.poll(ANSWER_MS) and self._socket.recv(1) == frames.TO_PREPARE:
                frames.send_request(self._socket, b"", [lock])

    def close(self) -> str:
        """End the zygote; launches that still run end when their own sockets close. Returns the end of its output."""
        self._socket.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        return output_tail(self._log)
