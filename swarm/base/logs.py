"""A process's logging: plain lines for commands; otherwise readable lines on a terminal, and JSON lines elsewhere.

Values are cut at 512 characters, control characters (terminal escapes, bidirectional overrides, newlines) are escaped, and fields with a
secret's name are left out. Lines that a peer can cause are limited (`swarm.base.log_limits`), most strictly for strangers.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterator, MutableMapping
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Final, TextIO

import structlog

from swarm.base.log_limits import LineLimiter
from swarm.base.text import escape_text

MAX_ITEMS: Final = 32
_SECRET: Final = re.compile(r"(?i)(^|_)(seed|secret|token|password|private_key|api_key|ticket)(_|$)")
_TAMED: Final = {
    "libp2p": logging.CRITICAL,
    "libp2p.network.auto_connector": logging.CRITICAL,  # sets its own level on import
    "multiaddr": logging.ERROR,
    "hypercorn": logging.WARNING,
}

_BARE: Final = frozenset({"note", "why", "detail"})
"""Fields that contain sentences."""

LEFT_OUT: Final = "logs.left_out"
_NEWS: Final = ("debug", "info")
Event = MutableMapping[str, Any]


def set_up_logs(
    stream: TextIO,
    *,
    level: int = logging.INFO,
    plain: bool = False,
    file: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Send all log lines of this process to `stream`. Call once, before anything else starts. `plain`: lines like a command's own messages;
    `file`: also write lines from info on there, as JSON (`swarm.base.log_files`); `clock`: seconds, for the limits of lines.
    """
    pretty = stream.isatty()
    shared: list[Any] = [structlog.contextvars.merge_contextvars, structlog.stdlib.add_log_level, _set_time]
    renderer: Any = (
        plain_line
        if plain
        else structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if pretty
        else structlog.processors.JSONRenderer()
    )
    handler = logging.StreamHandler(stream)
    _set_format(handler, shared, renderer, traces=pretty and not plain)
    handler.setLevel(level)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    if file is not None:
        from swarm.base.log_files import LogFile  # importing logging.handlers takes time

        log_file = LogFile(file)
        _set_format(log_file, shared, structlog.processors.JSONRenderer())
        root.addHandler(log_file)
        level = min(level, logging.INFO)
    root.setLevel(level)
    tame_libraries()
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            LimitLines(clock),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # otherwise a logger that was used keeps its first stream
    )


def _set_format(handler: logging.Handler, shared: list[Any], renderer: Any, *, traces: bool = False) -> None:
    """`traces`: the renderer shows exceptions itself, and gets the local time in readable form."""
    parts: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    parts += [_short_time] if traces else [structlog.processors.format_exc_info]
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[*parts, make_safe, renderer]
        )
    )


_set_time: Final = structlog.processors.TimeStamper(fmt="iso", utc=True)


def _short_time(_logger: Any, _method: str, event: Event) -> Event:
    at = datetime.fromisoformat(str(event["timestamp"]))
    return {**event, "timestamp": at.astimezone().strftime("%H:%M:%S")}


def _no_stranger(_peer: str) -> str | None:
    return None


class LimitLines:
    """A structlog processor: drops lines above the limits, and once a minute logs how many it dropped."""

    stranger_from: ClassVar[Callable[[str], str | None]] = staticmethod(_no_stranger)
    """The network of a peer that is a stranger to this process's node, empty if it has none; None: not a stranger. The node sets it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._limiter = LineLimiter()

    def __call__(self, _logger: Any, method: str, event: Event) -> Event:
        name, now = str(event.get("event", "")), self._clock()
        if name == LEFT_OUT:
            return event
        peer = str(event.get("peer") or "")
        network = LimitLines.stranger_from(peer) if peer else None
        admitted = self._limiter.admits(name, peer, method not in _NEWS, now, network)
        if counts := self._limiter.report(now):
            structlog.get_logger("logs").warning(LEFT_OUT, lines=counts)
        if not admitted:
            raise structlog.DropEvent
        return event


@contextlib.contextmanager
def strangers_known(stranger_from: Callable[[str], str | None]) -> Iterator[None]:
    """Limit the lines about strangers while a node runs; if a process has several nodes, the last one's."""
    LimitLines.stranger_from = staticmethod(stranger_from)
    try:
        yield
    finally:
        if LimitLines.stranger_from is stranger_from:
            LimitLines.stranger_from = staticmethod(_no_stranger)


def plain_line(_logger: Any, _method: str, event: Event) -> str:
    """A structlog renderer: `sark-node: gate 192.0.2.7:4101 does not answer; trying again`."""
    message = str(event.pop("event", ""))
    trace = event.pop("exception", None)
    if " " not in message:  # a name such as device.note: its fields say the rest
        message = message.replace(".", " ").replace("-", " ")
    fields = ", ".join(
        str(value) if name in _BARE else f"{name} {value}"
        for name, value in event.items()
        if name not in ("level", "timestamp")
    )
    return "\n".join(filter(None, [f"sark-node: {message}" + (f": {fields}" if fields else ""), trace]))


def tame_libraries() -> None:
    """Quieten libp2p, which logs a warning for each request and whole values of strangers; Sark logs what matters itself."""
    for name, least in _TAMED.items():
        logging.getLogger(name).setLevel(least)


def make_safe(_logger: Any, _method: str, event: Event) -> Event:
    """A structlog processor: makes every value of the event short, printable and free of secrets."""
    for name in list(event):
        if _SECRET.search(name):
            event[name] = "(left out)"
        elif name == "exception":
            event[name] = "\n".join(escape_text(line) for line in str(event[name]).splitlines()[-60:])
        elif name != "exc_info":
            event[name] = _safe_value(event[name])
    return event


def _safe_value(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return escape_text(str(value))
    if isinstance(value, dict):
        return {escape_text(str(key)): _safe_value(item) for key, item in list(value.items())[:MAX_ITEMS]}
    if isinstance(value, list | tuple | set | frozenset):
        return [_safe_value(item) for item in list(value)[:MAX_ITEMS]]
    return escape_text(repr(value))
