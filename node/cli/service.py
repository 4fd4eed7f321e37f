"""The services of `join --install` and `serve --install`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import typer

from node.install.install import (
    install,
    not_carried,
    run_command,
    service_command,
    setting_here,
    uninstall,
    works_here,
)
from node.install.service_files import ServiceRole

ONCE = frozenset({"ticket", "leave_pool", "install", "uninstall", "take_up", "stop_with_stdin"})
"""Options for this start only, not for the service."""


def install_service(ctx: typer.Context, role: ServiceRole, *more: str) -> NoReturn:
    """Install a service that runs this command with the same options and `more`. Exits with code 6 if the service does not run then."""
    flag = ctx.meta["home_flag"]
    setting = setting_here(ctx.obj, flag, ctx.meta["environment"], role=role)
    command = service_command(flag, [str(ctx.command.name), *options_given(ctx), *more])
    worker = role is ServiceRole.WORKER
    running = install(setting, command, run_command, print, busy=lambda: worker and works_here(ctx.obj))
    lost = not_carried(ctx.meta["environment"])
    if lost:
        print(
            f"The service does not get {', '.join(lost)}: these are set in this shell only.", file=sys.stderr
        )
        print(f"  settings that are not secret can go into {ctx.obj.config_file}", file=sys.stderr)
    raise SystemExit(0 if running else 6)


def uninstall_service(ctx: typer.Context, role: ServiceRole) -> NoReturn:
    """Stop and remove the service. Exits with code 1 if there is none."""
    setting = setting_here(ctx.obj, ctx.meta["home_flag"], ctx.meta["environment"], role=role)
    raise SystemExit(0 if uninstall(setting, run_command, print) else 1)


def options_given(ctx: typer.Context) -> list[str]:
    """The options of this command line, without those in `ONCE`."""
    words: list[str] = []
    for parameter in ctx.command.params:
        name, value = parameter.name or "", ctx.params.get(parameter.name or "")
        if name in ONCE or not value:
            continue
        option = max(parameter.opts, key=len)
        if value is True:
            words.append(option)
        else:
            for each in value if isinstance(value, (list, tuple)) else (value,):
                words += [option, str(each.absolute() if isinstance(each, Path) else each)]
    return words
