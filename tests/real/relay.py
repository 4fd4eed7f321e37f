"""A link that can be cut: a TCP relay in front of one node's port, which a test can silence, reset or close.

    node --listen 127.0.0.1:A --announce 127.0.0.1:B        B ── relay ──▶ A

silence  nothing passes and nothing is lost, as when a cable is pulled: bytes wait, new connections hang
reset    every connection ends at once with RST; new ones are accepted
refuse   like reset, and new ones are refused, as when the machine is up and nobody listens
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Final

import trio

from tests.real.lab import Lab, free_port

PIECE: Final = 65536
_RST: Final = struct.pack("ii", 1, 0)


class Relay:
    """Forwards connections from its own port on loopback to another port. Ends with the context."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._pairs: set[trio.CancelScope] = set()
        self._listener: trio.socket.SocketType | None = None
        self._flows = trio.Event()
        self._flows.set()
        self._up = threading.Event()
        self.port = 0

    def __enter__(self) -> Relay:
        self._thread = threading.Thread(target=trio.run, args=(self._run,), daemon=True)
        self._thread.start()
        assert self._up.wait(10), "the relay does not come up"
        return self

    def __exit__(self, *exc: object) -> None:
        self._do(self._nursery.cancel_scope.cancel)
        self._thread.join(5)

    # -- controls for tests -----------------------------------------------------------------------------------------------

    def silence(self) -> None:
        """Let nothing pass until `mend`."""
        self._do(self._hold)

    def reset(self) -> None:
        """End every connection with RST."""
        self._do(self._reset)

    def refuse(self) -> None:
        """Refuse connections until `mend`, and end the existing ones."""
        self._do(self._refuse)

    def mend(self) -> None:
        """Restore the initial state."""
        self._do(self._mend)

    def answers(self) -> bool:
        """Whether somebody listens at the port behind the relay."""
        with socket.socket() as caller:
            return caller.connect_ex(("127.0.0.1", self._target)) == 0

    def _do(self, what: Callable[[], None]) -> None:
        trio.from_thread.run_sync(what, trio_token=self._token)

    # -- the loop ----------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as self._nursery:
            self._listen()
            self._up.set()
            await trio.sleep_forever()

    def _listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(128)
        listener.setblocking(False)
        self.port = int(listener.getsockname()[1])
        self._listener = trio.socket.from_stdlib_socket(listener)
        self._nursery.start_soon(self._accept, self._listener)

    async def _accept(self, listener: trio.socket.SocketType) -> None:
        with listener, contextlib.suppress(trio.ClosedResourceError):  # by `refuse`
            while True:
                near, _ = await listener.accept()
                self._nursery.start_soon(self._connect, near)

    async def _connect(self, near: trio.socket.SocketType) -> None:
        with near, trio.socket.socket() as far, trio.CancelScope() as scope:
            self._pairs.add(scope)
            for end in (near, far):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)  # every end is abrupt
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                await self._flows.wait()
                await far.connect(("127.0.0.1", self._target))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pump, near, far, scope)
                    nursery.start_soon(self._pump, far, near, scope)
            except OSError:  # nobody listens behind the relay, and the caller has to see that
                pass
            finally:
                self._pairs.discard(scope)

    async def _pump(
        self, source: trio.socket.SocketType, sink: trio.socket.SocketType, scope: trio.CancelScope
    ) -> None:
        try:
            while piece := await source.recv(PIECE):
                await self._flows.wait()
                rest = memoryview(piece)
                while rest:
                    rest = rest[await sink.send(rest) :]
        except OSError:  # one side has ended
            pass
        scope.cancel()

    def _hold(self) -> None:
        if self._flows.is_set():
            self._flows = trio.Event()

    def _reset(self) -> None:
        for scope in self._pairs:
            scope.cancel()

    def _refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._reset()

    def _mend(self) -> None:
        if self._listener is None:
            self._listen()
        self._flows.set()


@contextlib.contextmanager
def relayed(lab: Lab) -> Iterator[dict[str, Relay]]:
    """A lab's gate and workers, started now, each worker behind a relay."""
    relays: dict[str, Relay] = {}
    with contextlib.ExitStack() as stack:
        lab.start_gate()
        lab.await_up("gate")
        for name in lab.workers:
            port = free_port()
            relays[name] = stack.enter_context(Relay(port))
            here, there = (f"/ip4/127.0.0.1/tcp/{number}" for number in (port, relays[name].port))
            lab.start_worker(name, "--listen", here, "--announce", there)
        for name in lab.workers:
            lab.await_up(name)
        yield relays
