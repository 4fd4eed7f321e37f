"""The parent's end of the child processes: start a zygote, fork a launch, read its frames, kill it.

`drivers.launch.launch` decides what to run and for how long; this module only knows processes. `drivers.launch.spawn` is its stand-in where
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

from drivers.contract import frames as wire
from drivers.contract.base import Crashed
from drivers.contract.boot import boot_command, clean_environment
from drivers.sandbox import cleanup

KILL_S: Final = 2.0
"""How long a killed launch may take to be gone before its group is killed past its keeper."""
READ_BYTES: Final = 1 << 16
LOOK_S: Final = 60.0
"""The longest that is waited at a time: poll(2) counts milliseconds in 31 bits, and a limit may be a year."""
LAST_WORDS: Final = 1500


class Child(Protocol):
    """One launch as its parent sees it."""

    def frames(self, deadline: Callable[[], float]) -> Iterator[bytes]:
        """Frames until the process and all below it are gone. Raises TimeoutError past `deadline()` (monotonic seconds),
        `wire.Garbled` for nonsense."""
        ...

    def kill(self) -> None:
        """End it and everything below it; returns when it is gone. Any thread may call it, any number of times."""
        ...

    def close(self) -> str:
        """Kill it, remove its private folder, release everything. Returns the last of what it printed."""
        ...

    @property
    def code(self) -> int | None:
        """Exit code, negative for a signal; None when nobody could tell."""
        ...


class ForkedChild:
    """A launch forked from a zygote: a keeper with a worker below it. `control` is this end of the keeper's socket."""

    def __init__(
        self, control: socket.socket, events: int, log: IO[bytes], folder: str, output_bytes: int
    ) -> None:
        self._control = control
        self._events = events
        self._log = log
        self._folder = folder
        self._pieces = wire.Reassembler(output_bytes)
        self._said = b""
        self._open = threading.Lock()
        self._closed = False
        os.set_blocking(events, False)
        control.setblocking(False)

    @property
    def code(self) -> int | None:
        """The keeper's second line; its first is the worker's process id."""
        lines = self._said.split(b"\n")
        return int(lines[1]) if len(lines) > 2 else None

    def frames(self, deadline: Callable[[], float]) -> Iterator[bytes]:
        """See `Child`."""
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._events, select.POLLIN)
        ended = False
        while not ended:
            left = deadline() - time.monotonic()
            if left <= 0:
                raise TimeoutError
            ready = {fd for fd, _ in poller.poll(math.ceil(min(left, LOOK_S) * 1000))}
            ended = self._control.fileno() in ready and self._hear_keeper()
            if self._events in ready or ended:  # once all below the keeper is dead the pipe holds the rest
                while (data := self._read()) is not None:
                    if not data:
                        with contextlib.suppress(KeyError):
                            poller.unregister(self._events)
                        break
                    yield from self._pieces.feed(data)

    def _read(self) -> bytes | None:
        try:
            return os.read(self._events, READ_BYTES)
        except BlockingIOError:
            return None

    def _hear_keeper(self) -> bool:
        """Take what the keeper said; True when it is gone, or has said that all below it is."""
        try:
            said = self._control.recv(64)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True
        self._said += said[: 64 - len(self._said)]
        return not said or self.code is not None

    def kill(self) -> None:
        """See `Child`. Letting go of the socket is the order to the keeper; its hang-up says that nothing is left."""
        with self._open:
            if self._closed or self.code is not None:
                return
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_WR)
            poller = select.poll()
            poller.register(self._control, 0)  # POLLHUP alone: the words in it are for frames()
            if not poller.poll(KILL_S * 1000):
                self._kill_by_number()

    def _kill_by_number(self) -> None:
        """Past a keeper that does not answer."""
        self._hear_keeper()
        numbers = self._said.split()
        if numbers and int(numbers[0]) > 1:  # anything else is no process of ours, or means everybody's
            for end in (os.killpg, os.kill):
                with contextlib.suppress(OSError):
                    end(int(numbers[0]), signal.SIGKILL)

    def close(self) -> str:
        """See `Child`."""
        self.kill()
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        while not self._hear_keeper() and poller.poll(KILL_S * 1000):
            pass
        if self.code is None:  # the keeper was killed before it could sweep
            self._kill_by_number()
        with self._open:
            self._closed = True
            self._control.close()
            os.close(self._events)
        words = last_words(self._log)
        cleanup.remove(self._folder)
        return words


def last_words(log: IO[bytes]) -> str:
    """The end of what a process printed, as printable text; closes the file."""
    with log:
        log.seek(0, os.SEEK_END)
        log.seek(max(0, log.tell() - LAST_WORDS))
        text = log.read(LAST_WORDS).decode(errors="replace")
    return "".join(letter if letter.isprintable() or letter == "\n" else "�" for letter in text).strip()


@contextlib.contextmanager
def starting() -> Iterator[contextlib.ExitStack]:
    """Undo what the block put on the stack when it fails; what this device lacks (files, processes, room) becomes `Crashed`."""
    with contextlib.ExitStack() as undo:
        try:
            yield undo
        except OSError as why:
            raise Crashed(f"this device cannot start a process for the run: {why.strerror or why}") from why
        undo.pop_all()


def private_folder(undo: contextlib.ExitStack) -> str:
    """A new folder for one launch; undone by rmdir, which needs no open file where they may be what is lacking."""
    folder = tempfile.mkdtemp(prefix="sark-run-")

    def remove() -> None:
        with contextlib.suppress(OSError):
            Path(folder).rmdir()

    undo.callback(remove)
    return folder


class ZygoteProcess:
    """A running `drivers.launch.zygote`; started at once, forking as soon as its imports are done."""

    def __init__(
        self,
        driver: str,
        simulate: bool,
        preload: bool,
        tier: str = "best",
        private: Mapping[str, str] | None = None,
        ahead: int = 0,
    ) -> None:
        """`tier`: how far its launches are shut in (`confine.Tier`), or `best`: as far as it finds it can. `private`: variables that
        the device's owner gives this driver and no other. `ahead`: launches that it prepares for while it is idle.

        Raises `Crashed` when this device has no room for another process.
        """
        with starting() as undo:
            self._socket, theirs = socket.socketpair()
            undo.enter_context(self._socket)
            with theirs:
                self._log = undo.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
                options = (str(int(simulate)), tier, str(ahead), str(int(preload)))
                arguments = (str(theirs.fileno()), driver, *options)
                self._process = subprocess.Popen(
                    self.command(*arguments),
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                    env=clean_environment(os.environ) | dict(private or {}),
                    cwd="/",
                    start_new_session=True,  # Ctrl-C in the terminal is for the node, which ends the zygote in order
                )
        self._sending = threading.Lock()

    @staticmethod
    def command(*arguments: str) -> list[str]:
        """What is run; `arguments` are those of `drivers.zygote.main`."""
        return boot_command("launch.zygote", *arguments)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can still fork."""
        return self._process.poll() is None

    def fork(self, told: bytes, output_bytes: int) -> ForkedChild:
        """Start one launch in a private folder of its own.

        Raises `Crashed` when the zygote is gone, or this device has no room for a launch.
        """
        with starting() as undo:
            folder = private_folder(undo)
            log = undo.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            control, keepers = socket.socketpair()
            undo.enter_context(control)
            with keepers:
                events, tell = os.pipe()
                undo.callback(os.close, events)
                try:
                    self._ask(os.fsencode(folder) + b"\0" + told, [keepers.fileno(), tell, log.fileno()])
                finally:
                    os.close(tell)
            return ForkedChild(control, events, log, folder, output_bytes)

    def _ask(self, payload: bytes, fds: list[int]) -> None:
        message = len(payload).to_bytes(wire.HEADER_BYTES, "big") + payload
        try:
            with self._sending:
                sent = socket.send_fds(self._socket, [message], fds)
                self._socket.sendall(message[sent:])
        except OSError as why:
            raise Crashed(f"the process that launches drivers is gone: {why}") from why

    def close(self) -> str:
        """End it; launches that are still running end by their own sockets. Returns the last of what it printed."""
        self._socket.close()
        try:
            self._process.wait(KILL_S)
        except subprocess.TimeoutExpired:  # still importing
            self._process.kill()
            self._process.wait()
        return last_words(self._log)
