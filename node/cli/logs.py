"""`sark-node logs`: shows the logs of this home's worker, scheduler, gate and server."""

from __future__ import annotations

import json
import logging
import sys
from collections import deque
from collections.abc import Iterable
from typing import Annotated

import typer

from protocol.errors import ResourceError
from swarm.base.home import Home
from swarm.base.log_files import LogFilter, LogLine, files_of, new_lines, stored_lines
from swarm.base.text import escape_text

app = typer.Typer()
PANEL = "This device"
LEVELS = ("debug", "info", "warning", "error")


@app.command(rich_help_panel=PANEL)
def logs(
    ctx: typer.Context,
    about: Annotated[
        list[str] | None,
        typer.Argument(
            help="Show only lines that name these campaigns or tasks, given by id.", metavar="ID..."
        ),
    ] = None,
    level: Annotated[
        str, typer.Option(help="Lowest level to show: debug, info, warning or error.", metavar="LEVEL")
    ] = "info",
    role: Annotated[
        list[str] | None,
        typer.Option(
            help="Show only this role: worker, scheduler, gate or serve. Repeatable.", metavar="ROLE"
        ),
    ] = None,
    last: Annotated[int, typer.Option("--last", "-n", min=0, help="Show at most this many lines.")] = 200,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines until Ctrl-C.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Show this home's logs, with the lines of all roles merged, oldest first.

    Worker, scheduler, gate and server each keep up to 30 MiB of logs.
    """
    home: Home = ctx.obj
    if level not in LEVELS:
        raise typer.BadParameter(f"must be one of {', '.join(LEVELS)}", param_hint="--level")
    known = files_of(home.logs)
    unknown = [one for one in role or () if one not in known]
    if unknown or not (known or follow):
        whose = f"a {unknown[0]}" if unknown else "any process"
        raise ResourceError(
            f"there is no log file of {whose} in {home.logs}",
            hint=f"there are: {', '.join(known)}"
            if known
            else "sark-node join, gate, serve and submit write log files",
        )
    wanted = LogFilter(
        logging.getLevelNamesMapping()[level.upper()], frozenset(role or ()), tuple(about or ())
    )
    _print(deque(stored_lines(home.logs, wanted), maxlen=last), as_json)
    if follow:
        _print(new_lines(home.logs, wanted), as_json)


def _print(lines: Iterable[LogLine], as_json: bool) -> None:
    for line in lines:
        if as_json:
            head = {"timestamp": line.at, "role": line.role, "level": line.level, "event": line.event}
            text = json.dumps({**head, **dict(line.fields)}, ensure_ascii=False)
        else:
            text = _shown(line)
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def _shown(line: LogLine) -> str:
    fields = "  ".join(f"{name}={_value(value)}" for name, value in line.fields)
    return f"{line.local()}  {line.role:<9}  {line.level:<7}  {escape_text(line.event)}  {fields}".rstrip()


def _value(value: object) -> str:
    if not isinstance(value, str):
        return escape_text(json.dumps(value, ensure_ascii=False))
    text = escape_text(value)
    return f'"{text}"' if " " in text or not text else text
