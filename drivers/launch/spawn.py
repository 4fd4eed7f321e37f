"""Launches where there is no fork (Windows): a fresh interpreter for each, with the order on its stdin and events on its stdout.

Slower than `drivers.launch.process` (it imports the runtime each time, outside every figure) and weaker (it does not find descendants that
leave the process group), with the same interface. It also runs on POSIX, where it is tested.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO, Final

from drivers.contract import frames
from drivers.contract.boot import boot_command, clean_environment
from drivers.launch.process import MAX_POLL_S, READ_BYTES, output_tail, private_folder, starting
from drivers.sandbox import cleanup

_END: Final = b""


class SpawnedChild:
    """See `drivers.launch.process.Child`."""

    def __init__(
        self, order_bytes: bytes, output_bytes: int, private: Mapping[str, str] | None = None
    ) -> None:
        """`private`: environment variables of this driver alone."""
        self._frames = frames.Reassembler(output_bytes)
        self._chunks: queue.Queue[bytes] = queue.Queue(maxsize=64)
        with starting() as undo:
            self._folder = private_folder(undo)
            self._log = undo.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            self._process = subprocess.Popen(
                boot_command("launch.child"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=clean_environment(os.environ) | dict(private or {}),
                cwd=self._folder,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):  # it died at once: frames() reports it
            self._process.stdin.write(frames.frame(os.fsencode(self._folder) + b"\0" + order_bytes))
            self._process.stdin.flush()  # stays open: its end tells the child that this process is gone
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, pipe: BinaryIO) -> None:
        while data := os.read(pipe.fileno(), READ_BYTES):
            self._chunks.put(data)
        self._chunks.put(_END)

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def frames(self, deadline: Callable[[], float]) -> Iterator[bytes]:
        while True:
            left = deadline() - time.monotonic()
            if left <= 0:
                raise TimeoutError
            try:
                data = self._chunks.get(timeout=min(left, MAX_POLL_S))
            except queue.Empty:
                continue
            if data == _END:
                self._process.wait()
                return
            yield from self._frames.feed(data)

    def kill(self) -> None:
        if sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        elif self._process.poll() is None:
            subprocess.run(  # the only tool of Windows that ends a whole tree
                ["taskkill", "/F", "/T", "/PID", str(self._process.pid)], capture_output=True, check=False
            )
            self._process.kill()
        self._process.wait()

    def give_turn(self) -> None:
        self._write(frames.TURN)

    def end_turns(self) -> None:
        self._write(frames.NO_MORE_TURNS)

    def _write(self, byte: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # the process is gone: frames() reports it
            self._process.stdin.write(byte)
            self._process.stdin.flush()

    def close(self) -> str:
        self.kill()
        while self._reader.is_alive():  # let the reader put its last chunk and end
            with contextlib.suppress(queue.Empty):
                self._chunks.get(timeout=0.01)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        output = output_tail(self._log)
        cleanup.remove(self._folder)
        return output
