"""The command reference, generated from the program itself: docs/cli.md for reading, docs/sark-node.1 for `man sark-node`.

python -P tools/reference.py [FOLDER]      (`make spec`)
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import typer
from pydantic import BaseModel
from rich.text import Text

import sark
from gate.settings import GateSettings
from node.settings.settings import WorkerSettings
from protocol.errors import EXIT_CODES
from scheduler.store.settings import SchedulerSettings
from swarm.net.settings import RoleSettings

NAME: Final = "sark-node"
EXAMPLES: Final[dict[str, Sequence[tuple[str, str]]]] = {
    "adopt": (
        (
            "adopt c-ab23cd45 --key scheduler.key",
            "continue the campaign of a lost machine, with a copy of its key",
        ),
    ),
    "bench": (
        ("bench model.onnx --precision 2%", "until the median is known to ± 2 %"),
        ("bench old.onnx new.onnx --compare", "which of two models is faster, and by how much"),
        ("bench net.onnx net.pt2 --compare", "the same for two runtimes"),
        ("bench model.onnx --unit all --csv rows.csv", "on every unit of this device"),
        ("bench model.onnx --on all --report out.html", "on every device that answers"),
    ),
    "campaigns": (("campaigns --json", "all campaigns of this home, for programs"),),
    "delete": (
        ("delete c-ab23cd45", "an ended campaign"),
        ("delete --yes c-ab23cd45 c-qa7a4agj", "in a script"),
    ),
    "cancel": (("cancel c-ab23cd45/3", "one task"), ("cancel c-ab23cd45", "the whole campaign")),
    "compare": (("compare raw-monday.json raw-friday.json", "a verdict for each model × device × unit"),),
    "delegate": (
        ("delegate c-ab23cd45 --to SCHEDULER_ID", "a token with which that scheduler can adopt the campaign"),
    ),
    "demo": (("demo --workers 2", "a gate, two workers and a campaign on this machine"),),
    "doctor": (("doctor", "what works here, what does not, and what to do"),),
    "drain": (("drain --finish", "finish running and queued tasks, then leave"),),
    "calibrate": (
        ("calibrate", "measure what this device can do at best"),
        (
            "calibrate --force --wait 10m",
            "one more round, at a quiet moment if there is one within 10 minutes",
        ),
    ),
    "events": (("events c-ab23cd45 --verify", "check that no event was changed"),),
    "explain": (("explain c-ab23cd45/3", "why this task waits or failed, and what would help"),),
    "gate": (
        ("gate", "print the address that newcomers need"),
        ("gate --announce /ip4/192.0.2.7/tcp/4101", "behind a forwarded port"),
    ),
    "gate status": (("gate status --live", "refresh until Ctrl-C"),),
    "info": (("info", "this device, its units, and this home's ids"),),
    "init": (("init campaign.yaml", "a commented campaign to start from"),),
    "invite": (
        ("invite", "a ticket for one device; waits until the device has joined"),
        ("invite --to WORKER_ID", "only for this worker; does not wait"),
    ),
    "join": (
        ("join", "a worker for the scheduler of this home"),
        ("join TICKET", "a worker for the home that printed it with: sark-node invite"),
        ("join --gate ADDRESS --allow SCHEDULER_ID", "through a gate, for that scheduler"),
        ("join --install - < ticket.txt", "also after each reboot, for a pool"),
    ),
    "matrix": (
        (
            "matrix raw.json --prices prices.yaml",
            "one table with ratios, and throughput per watt and per price",
        ),
    ),
    "models add": (("models add model.onnx", "store it here, so that no task has to fetch it"),),
    "pause": (("pause --now", "no new work, and stop running tasks"),),
    "peers": (("peers 'ram >= 8 GiB' 'soc ~ \"Apple M*\"'", "which devices fit, and why others do not"),),
    "plan": (("plan campaign.yaml", "where, when and how long each task would run, or why it cannot"),),
    "pool create": (("pool create lab", "a pool with a key of its own"),),
    "pool invite": (("pool invite lab --uses 5", "a ticket for five devices"),),
    "results": (
        ("results c-ab23cd45 --csv rows.csv", "write the table to a file"),
        ("results --parquet rows.parquet", "typed columns, with all samples"),
    ),
    "retry": (("retry c-ab23cd45", "run failed and cancelled tasks again"),),
    "schedule": (("schedule --stay", "one of several schedulers that share a store"),),
    "serve": (("serve", "the dashboard and the HTTP API, for this machine only"),),
    "submit": (
        ("submit campaign.yaml", "run it and watch"),
        ("submit campaign.yaml --detach", "print its id and return"),
    ),
    "top": (("top", "campaigns and devices, live"), ("top --once", "once, as plain lines")),
    "validate": (("validate campaign.yaml", "check the file, and show what would be measured"),),
    "verify": (
        ("verify raw.json --csv rows.csv", "check signatures and hashes, and recompute every number"),
    ),
    "watch": (("watch", "the latest campaign, until it ends"),),
}
"""By command: what to type after the program's name, and what it does. Tests check that the program accepts each example."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An argument or an option."""

    name: str
    """Name as it is typed, with its value."""
    help: str
    notes: tuple[str, ...]
    """Notes: default, variable, repeatable."""


@dataclass(frozen=True, slots=True)
class Page:
    """One command."""

    name: str
    """Words after the program's name; empty for the program itself."""
    summary: str
    rest: tuple[str, ...]
    """Paragraphs after the first."""
    synopsis: str
    arguments: tuple[Entry, ...]
    options: tuple[Entry, ...]
    panel: str
    commands: tuple[str, ...]


def plain(text: str | None) -> str:
    """Help without rich's markup, on one line."""
    return " ".join(Text.from_markup(text or "").plain.split())


def pages() -> Iterator[Page]:
    """The program, then each of its commands in alphabetical order, each followed by its own commands. Hidden ones are left out."""
    program: Any = typer.main.get_command(sark.app)
    program.list_commands(typer.Context(program))  # imports all commands
    yield from _pages(program, (), "")


def _pages(command: Any, path: tuple[str, ...], panel: str) -> Iterator[Page]:
    inner = {name: one for name, one in sorted(getattr(command, "commands", {}).items()) if not one.hidden}
    own = command.rich_help_panel if isinstance(command.rich_help_panel, str) else panel
    paragraphs = [plain(part) for part in (command.help or "").split("\n\n")]
    shown = [one for one in command.params if not getattr(one, "hidden", False)]
    context = typer.Context(command)
    arguments = tuple(_entry(one, context) for one in shown if one.param_type_name == "argument")
    options = tuple(_entry(one, context) for one in shown if one.param_type_name == "option")
    yield Page(
        " ".join(path), paragraphs[0], tuple(paragraphs[1:]), _synopsis(path, command, shown),
        arguments, options, own, tuple(" ".join((*path, name)) for name in inner),
    )  # fmt: skip
    for name, one in inner.items():
        yield from _pages(one, (*path, name), own)


def _entry(parameter: Any, context: typer.Context) -> Entry:
    """An entry. `parameter`: an argument or an option as typer stores it."""
    option = parameter.param_type_name == "option"
    record = parameter.get_help_record(context)
    name = re.sub(r"<([^>]*)>", _typed, record[0]) if option else _name(parameter)
    flag = getattr(parameter, "is_flag", False)
    notes = []
    if parameter.required and option:
        notes.append("required")
    if (parameter.multiple or parameter.nargs == -1) and "Repeatable" not in (parameter.help or ""):
        notes.append("repeatable")
    if not flag and (message := _default(parameter.default)):
        notes.append(f"default: {message}")
    if parameter.envvar:
        notes.append(f"variable: {parameter.envvar}")
    return Entry(name, plain(parameter.help), tuple(notes))


def _typed(found: re.Match[str]) -> str:
    """The name of a type for people."""
    return (
        "N"
        if found[1].startswith(("int", "float"))
        else {"path": "PATH", "dir": "FOLDER", "file": "FILE"}.get(found[1], "TEXT")
    )


def _name(argument: Any) -> str:
    name = str(argument.metavar or argument.name.upper())
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    return name.removesuffix("...")


def _synopsis(path: Sequence[str], command: Any, shown: Sequence[Any]) -> str:
    words = [NAME, *path, "[OPTIONS]"]
    for one in shown:
        if one.param_type_name == "argument":
            many = "..." if one.nargs == -1 or one.multiple else ""
            words.append(f"{_name(one)}{many}" if one.required else f"[{_name(one)}]{many}")
    if getattr(command, "commands", {}):
        words.append("[COMMAND]" if getattr(command, "invoke_without_command", False) else "COMMAND")
    return " ".join(words)


def _default(value: Any) -> str:
    if value is None or callable(value) or value in ("", (), []):
        return ""
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def settings(of: type[RoleSettings]) -> dict[str, str]:
    """The settings of a role, with the documentation in their source; inherited ones first."""
    by_key: dict[str, str] = {}
    for cls in reversed(of.__mro__):
        if cls is BaseModel or not issubclass(cls, BaseModel):
            continue
        body = ast.parse(inspect.getsource(cls)).body[0]
        assert isinstance(body, ast.ClassDef)
        for here, after in zip(body.body, [*body.body[1:], None], strict=True):
            if (
                isinstance(here, ast.AnnAssign)
                and isinstance(here.target, ast.Name)
                and here.target.id in of.model_fields
            ):
                message = after.value if isinstance(after, ast.Expr) else None
                text_found = (
                    message.value
                    if isinstance(message, ast.Constant) and isinstance(message.value, str)
                    else ""
                )
                by_key[here.target.id] = " ".join(text_found.split()) or by_key.get(here.target.id, "")

    return by_key


ROLES: Final = (("worker", WorkerSettings), ("gate", GateSettings), ("scheduler", SchedulerSettings))


# -- Markdown ------------------------------------------------------------------------------------------------------------------


def markdown() -> str:
    """docs/cli.md."""
    made = list(pages())
    top = made[0]
    lines = [
        "# The commands",
        "",
        "Generated by `make spec` from the program: change the code, not this page.",
        f"`{NAME} COMMAND --help` says the same, and so does `man {NAME}`, where it is installed.",
        "",
        top.summary,
        "",
        *_block([top.synopsis]),
        *_entries_md("Options", top.options),
    ]
    panels: dict[str, list[Page]] = {}
    for page in made[1:]:
        panels.setdefault(page.panel or "Others", []).append(page)
    lines += ["", "| for | commands |", "|---|---|"]
    for panel, inside in panels.items():
        links = " · ".join(f"[{page.name}](#{_anchor(page.name)})" for page in inside)
        lines.append(f"| {panel.removeprefix('For ')} | {links} |")
    lines += [
        "",
        "## Exit codes",
        "",
        "| code | |",
        "|---|---|",
        *(f"| {code} | {what} |" for code, what in EXIT_CODES.items()),
    ]
    lines += ["", "## Settings", "", *SETTINGS_INTRO, ""]
    for role, cls in ROLES:
        lines += [f"### [{role}]", "", "| setting | variable | |", "|---|---|---|"]
        lines += [
            f"| `{name}` | `SARK_{name.upper()}` | {_cell(message)} |"
            for name, message in settings(cls).items()
        ]
        lines.append("")
    for page in made[1:]:
        lines += [f"## {NAME} {page.name}", "", page.summary, ""]
        for part in page.rest:
            lines += [part, ""]
        lines += _block([page.synopsis])
        lines += _entries_md("Arguments", page.arguments)
        lines += _entries_md("Options", page.options)
        if page.name in EXAMPLES:
            wide = max(len(words) for words, _ in EXAMPLES[page.name])
            lines += [
                "Examples:",
                "",
                *_block(f"{NAME} {words:{wide}}    # {what}" for words, what in EXAMPLES[page.name]),
            ]
    return "\n".join(lines).rstrip() + "\n"


SETTINGS_INTRO: Final = (
    "Set these in `config.toml`, in a variable or by a flag. A flag overrides a variable; a variable overrides the file.",
    "Keys that all roles know may stand at the top of the file, keys of one role in its section. In a variable, write a list as `a,b`",
    "and names with values as `a=b,c=d`. Names that end in `_s` are seconds, in `_bytes` bytes; write a unit where an example has one.",
)


def _block(lines: Iterable[str]) -> list[str]:
    return ["```", *lines, "```", ""]


def _entries_md(title: str, entries: Sequence[Entry]) -> list[str]:
    if not entries:
        return []
    rows = [f"| `{entry.name}` | {_cell(_whole(entry))} |".replace("||", "|") for entry in entries]
    return [f"| {title.lower()} | |", "|---|---|", *rows, ""]


def _whole(entry: Entry) -> str:
    notes = f" ({'; '.join(entry.notes)})" if entry.notes else ""
    return f"{entry.help}{notes}".strip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _anchor(name: str) -> str:
    return f"{NAME} {name}".replace(" ", "-")


# -- man -----------------------------------------------------------------------------------------------------------------------


def man() -> str:
    """docs/sark-node.1, in roff's man macros."""
    made = list(pages())
    top = made[0]
    out = [
        f'.TH SARK\\-NODE 1 "" "sark\\-node {version("sark-node")}" "User Commands"',
        ".SH NAME",
        f"{_roff(NAME)} \\- {_roff(top.summary)}",
        ".SH SYNOPSIS",
        f".B {_roff(top.synopsis)}",
        ".SH OPTIONS",
        *_entries_man(top.options),
        ".SH COMMANDS",
    ]
    for page in made[1:]:
        out += [f".SS {_roff(page.name)}", f".B {_roff(page.synopsis)}", ".PP", _roff(page.summary)]
        for part in page.rest:
            out += [".PP", _roff(part)]
        out += _entries_man((*page.arguments, *page.options))
        for words, what in EXAMPLES.get(page.name, ()):
            out += [".TP", f"Example: {_roff(f'{NAME} {words}')}", _roff(what)]
    out.append(".SH EXIT STATUS")
    for code, what in EXIT_CODES.items():
        out += [".TP", str(code), _roff(what)]
    out.append(".SH ENVIRONMENT")
    for page in made[:1]:
        out += _entries_man(
            [entry for entry in page.options if any("variable" in note for note in entry.notes)]
        )
    for role, cls in ROLES:
        out += [".SS " + _roff(f"[{role}] of config.toml")]
        for name, message in settings(cls).items():
            out += [".TP", f".B SARK_{name.upper()}", _roff(message) or "\\&"]
    return "\n".join(out) + "\n"


def _entries_man(entries: Iterable[Entry]) -> list[str]:
    lines: list[str] = []
    for entry in entries:
        lines += [".TP", f".B {_roff(entry.name)}", _roff(_whole(entry)) or "\\&"]
    return lines


def _roff(text: str) -> str:
    """The text, escaped: no part of it is a request or an escape."""
    safe = text.replace("\\", "\\e").replace("-", "\\-")
    safe = "".join(char if char.isascii() else f"\\[u{ord(char):04X}]" for char in safe)
    return f"\\&{safe}" if safe[:1] in ".'" else safe


def main(arguments: Sequence[str]) -> None:
    """Write both pages."""
    folder = Path(arguments[0]) if arguments else Path(__file__).absolute().parents[1] / "docs"
    (folder / "cli.md").write_text(markdown(), encoding="utf-8")
    (folder / "sark-node.1").write_text(man(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
