"""Where a model's operators really ran: profiles a second session next to the timed one.

A session on a GPU moves unsupported operators to the CPU, perhaps all of them, without changing its list of providers. Only the runtime's
profile shows it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from drivers.contract.base import DriverError
from drivers.local.model import ExecutionPlace
from drivers.onnx.operators import AssignedNode, SessionFacts, read_profile
from drivers.onnx.session import runtime, runtime_errors
from drivers.onnx.units import UNITS

RECORD_ASSIGNMENT: Final = "session.record_ep_graph_assignment_info"
MAX_PROFILE: Final = 32 * 1024 * 1024
"""Most bytes of a profile; a longer one, such as that of a loop with many iterations, is cut off and yields nothing."""
MAX_LOG: Final = 16 * 1024 * 1024
"""Most bytes read from the runtime's log."""
INFO, WARNING = 1, 2
"""Log levels of the runtime."""


def unit_that_ran(unit: str, provider: str, live: Sequence[str], nodes: Mapping[str, int]) -> ExecutionPlace:
    """The unit that ran the model: a unit other than `unit` if no operator ran on its provider.

    `provider`: the unit's provider. `live`: the session's providers. `nodes`: operators by provider.
    """
    if not nodes:
        return ExecutionPlace(unit, tuple(live), ("the runtime does not report where the operators ran",))
    order = sorted(nodes, key=lambda name: (name != provider, -nodes[name], name))
    if provider not in nodes:
        others = (one.unit for one in UNITS if order[0] in one.names)
        return ExecutionPlace(next(others, order[0]), tuple(order))
    total = sum(nodes.values())
    notes = tuple(f"{nodes[name]} of {total} operators ran on {name}" for name in order[1:])
    return ExecutionPlace(unit, tuple(order), notes)


def profile(infer: Callable[[Any], Any], options: Any, *, with_log: bool = False) -> SessionFacts:
    """The facts of a session made for this purpose; empty if it fails, as with too little memory for two sessions.

    `infer` opens a session with `options`, runs it and returns it. `with_log`: also collect its log, which has the reasons of a fallback.
    """
    options.enable_profiling = True
    options.add_session_config_entry(RECORD_ASSIGNMENT, "1")
    if with_log:
        options.log_severity_level = INFO
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        options.profile_file_prefix = str(Path(folder, "profile"))
        try:
            with logged_to(log) if with_log else contextlib.nullcontext():
                session = infer(options)
        except DriverError:
            return SessionFacts()
        try:
            with Path(session.end_profiling()).open("rb") as file:
                text = file.read(MAX_PROFILE)
        except OSError:
            return SessionFacts()
        calls = read_profile(text.decode("utf-8", "replace"))
        log.seek(0)
        return SessionFacts(calls, assignment(session), log.read(MAX_LOG).decode("utf-8", "replace"))


def assignment(session: Any) -> tuple[AssignedNode, ...]:
    """The nodes that each provider was assigned; empty if the runtime does not report them."""
    tell = getattr(session, "get_provider_graph_assignment_info", None)
    try:
        parts = [] if tell is None else tell()
        return tuple(
            AssignedNode(node.name, node.op_type, node.domain, part.ep_name)
            for part in parts
            for node in part.get_nodes()
        )
    except runtime_errors():  # also for a name that is not UTF-8
        return ()


@contextlib.contextmanager
def logged_to(log: BinaryIO) -> Iterator[None]:
    """Redirect the runtime's log to `log` during the block; otherwise the runtime writes it to this process's standard error."""
    ort = runtime()
    kept = os.dup(2)
    try:
        os.dup2(log.fileno(), 2)
        ort.set_default_logger_severity(INFO)
        yield
    finally:
        ort.set_default_logger_severity(WARNING)
        os.dup2(kept, 2)
        os.close(kept)
