"""The service files and commands that make a system start the worker or the server again after a reboot. Pure.

    Linux     a systemd unit: of the user, or as root of the system
    macOS     a property list for launchd: an agent of the user, or as root a daemon
    Windows   a task of the Task Scheduler: at log-on, or for an administrator at start-up

Each file says that this program wrote it, and for which home. A file without this text belongs to somebody else, and is left alone.
"""

from __future__ import annotations

import hashlib
import plistlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Final
from xml.sax.saxutils import escape

from node.install.restart_loop import AGAIN_S, WRONG
from protocol.errors import ResourceError

NAME: Final = "sark-node"
STILL_THERE: Final = 15
"""Tries to start a launchd job, because launchd reports that a job is gone before it is, and only then can start it again."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_UNTOLD: Final = re.compile(r"[\ud800-\udfff]")
"""Characters that stand for the bytes of a file name that is not UTF-8."""


class ServiceManager(StrEnum):
    """The system component that starts services."""

    SYSTEMD = "systemd"
    LAUNCHD = "launchd"
    WINDOWS = "Windows Task Scheduler"


class ServiceRole(StrEnum):
    """The part of a home that the service runs."""

    WORKER = "worker"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class Setting:
    """The owner and the place of a service."""

    system: ServiceManager
    root: bool
    """Whether it is a service of the system, not of one user."""
    user: str
    uid: int
    folder: Path
    """The user's own folder."""
    config: Path
    """The folder for settings of that user's programs: `~/.config`."""
    data: Path
    """This home's data folder."""
    logs: Path
    home: Path | None
    """The folder given by --home; None: the platform's folders."""
    role: ServiceRole = ServiceRole.WORKER
    environment: tuple[tuple[str, str], ...] = ()
    """Variables of this shell that the worker needs to be the same worker: those of its folders, and of the runtimes' libraries."""


@dataclass(frozen=True, slots=True)
class InstallStep:
    """A command, and whether its failure makes the whole installation fail."""

    command: tuple[str, ...]
    must: bool = True
    hint: str = ""
    """What to do by hand if it fails."""
    tries: int = 1
    """Number of tries, a second apart."""


@dataclass(frozen=True, slots=True)
class Service:
    """One service, ready to be written."""

    name: str
    path: Path
    text: str
    mark: str
    """The text that marks the file as this home's own."""
    enable: tuple[InstallStep, ...]
    disable: tuple[InstallStep, ...]
    log: str
    """The command that shows the log."""
    state: str
    """The command that shows the service's state."""
    notes: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    """The command that succeeds if the name is taken, for systems that store their tasks outside the file."""
    encoding: str = "utf-8"


def name_for(home: Path | None, role: ServiceRole = ServiceRole.WORKER) -> str:
    """A name for each home and role, so that services on one machine do not collide."""
    name = NAME if role is ServiceRole.WORKER else f"{NAME}-{role}"
    if home is None:
        return name
    return f"{name}-{hashlib.sha256(str(home).encode()).hexdigest()[:8]}"


def service_for(setting: Setting, command: Sequence[str]) -> Service:
    """The service that runs `command`. Raises `ResourceError` for a word that the system's files cannot express."""
    for word in (*command, str(setting.data), str(setting.logs), setting.user, *sum(setting.environment, ())):
        if _CONTROL.search(word):
            raise ResourceError(
                f"an argument contains a line break or another control character: {word!r}",
                hint="remove the control character, or set the value in config.toml",
            )
        if _UNTOLD.search(word):
            raise ResourceError(
                f"{word!r} is not valid text and cannot be written to a service file",
                hint="give the file or folder another name",
            )
    match setting.system:
        case ServiceManager.SYSTEMD:
            return _systemd(setting, command)
        case ServiceManager.LAUNCHD:
            return _launchd(setting, command)
        case ServiceManager.WINDOWS:
            return _windows(setting, command)


def _mark(setting: Setting) -> str:
    return f"written by sark-node for {setting.data};"


def _variables(setting: Setting) -> tuple[tuple[str, str], ...]:
    return (("PYTHONUNBUFFERED", "1"), *setting.environment)


# -- systemd -------------------------------------------------------------------------------------------------------------


def _systemd(setting: Setting, command: Sequence[str]) -> Service:
    name = f"{name_for(setting.home, setting.role)}.service"
    folder = Path("/etc/systemd/system") if setting.root else setting.config / "systemd" / "user"
    control = ("systemctl",) if setting.root else ("systemctl", "--user")
    journal = f"journalctl {'' if setting.root else '--user '}-u {name} -f"
    linger = InstallStep(
        ("loginctl", "enable-linger", setting.user),
        must=False,
        hint=f"without it the worker starts when you log in, not at boot: sudo loginctl enable-linger {setting.user}",
    )
    return Service(
        name=name,
        path=folder / name,
        text=unit_text(setting, command),
        mark=_mark(setting),
        enable=(
            InstallStep(
                (*control, "daemon-reload"), hint="is systemd running here, and do you have a login session?"
            ),
            InstallStep((*control, "enable", name)),
            InstallStep((*control, "restart", name)),
            *(() if setting.root else (linger,)),
        ),
        disable=(InstallStep((*control, "disable", "--now", name)),),
        log=journal,
        state=f"{' '.join(control)} status {name}",
    )


def unit_text(setting: Setting, command: Sequence[str]) -> str:
    """The unit file. A worker that exits normally (drain) is not restarted; a worker that fails is, unless its settings are wrong."""
    target = "multi-user.target" if setting.root else "default.target"
    network = "After=network-online.target\nWants=network-online.target\n" if setting.root else ""
    user = f"User={setting.user}\n" if setting.root else ""
    return f"""\
# {_mark(setting)}
[Unit]
Description=Sark {setting.role}
{network}StartLimitIntervalSec=0

[Service]
Type=exec
{user}ExecStart={" ".join(map(_systemd_word, command))}
{"".join(map(_systemd_variable, _variables(setting)))}Restart=on-failure
RestartSec={AGAIN_S}
RestartPreventExitStatus={" ".join(map(str, WRONG))}
KillMode=mixed
TimeoutStopSec=30

[Install]
WantedBy={target}
"""


def _systemd_word(word: str) -> str:
    """The word in quotes, with the characters doubled that systemd would replace."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{plain}"'


def _systemd_variable(variable: tuple[str, str]) -> str:
    """The line for one variable. systemd does not replace `$` there."""
    plain = "=".join(variable).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'Environment="{plain}"\n'


# -- launchd -------------------------------------------------------------------------------------------------------------


def _launchd(setting: Setting, command: Sequence[str]) -> Service:
    label = f"org.{name_for(setting.home, setting.role).replace('-', '.', 1)}"
    library = PurePosixPath("/Library") if setting.root else setting.folder / "Library"
    path = Path(library) / ("LaunchDaemons" if setting.root else "LaunchAgents") / f"{label}.plist"
    domain = "system" if setting.root else f"gui/{setting.uid}"
    out = InstallStep(("launchctl", "bootout", f"{domain}/{label}"), must=False)
    note = "It starts when you log in. To start it at boot instead, install it with sudo."
    return Service(
        name=label,
        path=path,
        text=plist_text(setting, label, command),
        mark=escape(_mark(setting)),
        enable=(
            out,
            InstallStep(("launchctl", "enable", f"{domain}/{label}"), must=False),
            InstallStep(
                ("launchctl", "bootstrap", domain, str(path)),
                hint="are you logged in at this Mac's screen?",
                tries=STILL_THERE,
            ),
        ),
        disable=(out,),
        log=f"tail -f {shlex.quote(str(_log(setting)))}",
        state=f"launchctl print {domain}/{label}",
        notes=() if setting.root else (note,),
    )


def plist_text(setting: Setting, label: str, command: Sequence[str]) -> str:
    """The property list. It says `Interactive` because macOS slows down other processes, which would distort measurements."""
    return plistlib.dumps(
        {
            "Label": label,
            "ProgramArguments": list(command),
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": AGAIN_S,
            "ProcessType": "Interactive",
            "EnvironmentVariables": {**dict(_variables(setting)), "SARK_SERVICE": _mark(setting)},
            "StandardOutPath": str(_log(setting)),
            "StandardErrorPath": str(_log(setting)),
            **({"UserName": setting.user} if setting.root else {}),
        }
    ).decode()


def _log(setting: Setting) -> Path:
    return setting.logs / f"{setting.role}.log"


# -- Windows -------------------------------------------------------------------------------------------------------------


def _windows(setting: Setting, command: Sequence[str]) -> Service:
    name = name_for(setting.home, setting.role)
    path = setting.data / ("service.xml" if setting.role is ServiceRole.WORKER else f"{setting.role}.xml")
    task = f"\\{name}"
    return Service(
        name=name,
        path=path,
        text=task_text(setting, command),
        mark=escape(_mark(setting)),
        enable=(
            InstallStep(("schtasks", "/End", "/TN", task), must=False),
            InstallStep(
                ("schtasks", "/Create", "/TN", task, "/XML", str(path), "/F"),
                hint="an administrator may have forbidden it",
            ),
            InstallStep(("schtasks", "/Run", "/TN", task)),
        ),
        disable=(
            InstallStep(("schtasks", "/End", "/TN", task), must=False),
            InstallStep(("schtasks", "/Delete", "/TN", task, "/F"), must=False),
        ),
        log=f'powershell Get-Content -Wait "{_log(setting)}"',
        state=f"schtasks /Query /TN {task} /V /FO LIST",
        notes=()
        if setting.root
        else (
            "It starts when you log on. To start it at boot instead, install it from an administrator's prompt.",
        ),
        taken=("schtasks", "/Query", "/TN", task),
        encoding="utf-16",
    )


def task_text(setting: Setting, command: Sequence[str]) -> str:
    """The task. Priority 5 is the usual priority of programs; the default of tasks is 7, which is background and slows measurements down.

    The Task Scheduler retries a task that it could not start, but does not restart one that ended: `node.install.restart_loop` does that.
    """
    line = " ".join(map(_cmd_word, (*command[:1], "-P", "-m", "node.install.restart_loop", *command)))
    arguments = f'/d /s /c "{line} >> {_cmd_word(str(_log(setting)))} 2>&1"'
    trigger = "BootTrigger" if setting.root else "LogonTrigger"
    user = "" if setting.root else f"\n      <UserId>{escape(setting.user)}</UserId>"
    logon = "S4U" if setting.root else "InteractiveToken"
    return f"""\
<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <RegistrationInfo>
    <Description>Sark {setting.role}; {escape(_mark(setting))}</Description>
  </RegistrationInfo>
  <Triggers>
    <{trigger}>
      <Enabled>true</Enabled>{user}
    </{trigger}>
  </Triggers>
  <Principals>
    <Principal id="Author">
      <UserId>{escape(setting.user)}</UserId>
      <LogonType>{logon}</LogonType>
      <RunLevel>LeastPrivilege</RunLevel>
    </Principal>
  </Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <StartWhenAvailable>true</StartWhenAvailable>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <Priority>5</Priority>
    <RestartOnFailure>
      <Interval>PT1M</Interval>
      <Count>255</Count>
    </RestartOnFailure>
  </Settings>
  <Actions Context="Author">
    <Exec>
      <Command>cmd.exe</Command>
      <Arguments>{escape(arguments)}</Arguments>
    </Exec>
  </Actions>
</Task>
"""


def _cmd_word(word: str) -> str:
    """The word in quotes, inside which cmd.exe changes only % and quotes."""
    if '"' in word or "%" in word:
        raise ResourceError(
            f'the Task Scheduler cannot pass an argument with " or %: {word}',
            hint="set it in config.toml",
        )
    return f'"{word}{chr(92) if word.endswith(chr(92)) else ""}"'
