"""Whether a gate answers, checked before a command waits for it."""

from __future__ import annotations

import socket
import threading

from swarm.join.known_gates import any_gate_answers

HERE, SILENT, SHUT = (f"/ip4/192.0.2.{n}/tcp/4101" for n in (1, 2, 3))


def test_the_first_answer_is_enough_and_silence_holds_nothing_up() -> None:
    end = threading.Event()

    def connect(where: tuple[str, int], within_s: float) -> socket.socket:
        if where[0] == "192.0.2.1":
            return socket.socket()
        if where[0] == "192.0.2.2":
            end.wait()
        raise OSError

    try:
        assert any_gate_answers([SILENT, SHUT, HERE], 60.0, connect)
        assert not any_gate_answers([SILENT, SHUT], 0.01, connect)
    finally:
        end.set()
    assert not any_gate_answers([SHUT, "nonsense"], 60.0, connect)
    assert not any_gate_answers([], 60.0, connect)
