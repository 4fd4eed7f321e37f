"""What makes a system start the worker or the server again after a reboot: the texts of its service files, and commands around them. Pure.

    Linux     a unit of systemd: of the user, or as root of the system
    macOS     a property list for launchd: an agent of the user, or as root a daemon
    Windows   a task of the Task Scheduler: at log-on, or for an administrator at start-up

Each file says in words that this program wrote it, and for which home: a file that does not is somebody else's, and is left alone.
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
"""Tries to start a launchd job: launchd says that a job is gone before it is, and takes it up again only after that."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_UNTOLD: Final = re.compile(r"[\ud800-\udfff]")
"""What stands for the bytes of a file name that is not UTF-8."""


class ServiceManager(StrEnum):
    """Which of them starts things here."""

    SYSTEMD = "systemd"
    LAUNCHD = "launchd"
    WINDOWS = "Windows Task Scheduler"


class ServiceRole(StrEnum):
    """The part of a home that the service runs."""

    WORKER = "worker"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class Setting:
    """Whose service, and where."""

    system: ServiceManager
    root: bool
    """As the system's, not one user's."""
    user: str
    uid: int
    folder: Path
    """The user's own folder."""
    config: Path
    """Where that user's programs keep their settings: `~/.config`."""
    data: Path
    """This home's data folder."""
    logs: Path
    home: Path | None
    """As given by --home; None: the platform's folders."""
    role: ServiceRole = ServiceRole.WORKER
    environment: tuple[tuple[str, str], ...] = ()
    """Variables of this shell without which the worker would be another: where its folders are, and the runtimes' libraries."""


@dataclass(frozen=True, slots=True)
class InstallStep:
    """A command, and whether its failure is one of the whole."""

    command: tuple[str, ...]
    must: bool = True
    hint: str = ""
    """What to do by hand where it fails."""
    tries: int = 1
    """A second apart."""


@dataclass(frozen=True, slots=True)
class Service:
    """One service, ready to be written."""

    name: str
    path: Path
    text: str
    mark: str
    """Stands in the file if it is this home's own."""
    enable: tuple[InstallStep, ...]
    disable: tuple[InstallStep, ...]
    log: str
    """The command that shows the log."""
    state: str
    """The command that shows how it stands."""
    notes: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    """Succeeds where the name is taken; for systems that keep their tasks elsewhere than in the file."""
    encoding: str = "utf-8"


def name_for(home: Path | None, role: ServiceRole = ServiceRole.WORKER) -> str:
    """One name for each home and role, so that several of one machine do not meet."""
    name = NAME if role is ServiceRole.WORKER else f"{NAME}-{role}"
    if home is None:
        return name
    return f"{name}-{hashlib.sha256(str(home).encode()).hexdigest()[:8]}"


def service_for(setting: Setting, command: Sequence[str]) -> Service:
    """The service that runs `command`, which is a worker's. Raises `ResourceError` for a word that the system's files cannot carry."""
    for word in (*command, str(setting.data), str(setting.logs), setting.user, *sum(setting.environment, ())):
        if _CONTROL.search(word):
            raise ResourceError(
                f"an argument holds a line break or another control character: {word!r}",
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
    """The unit file. A worker that leaves in good order (drain) stays away; one that fails starts again, unless its settings are wrong."""
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
    """In quotes, with what systemd would replace written twice."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{plain}"'


def _systemd_variable(variable: tuple[str, str]) -> str:
    """A line for one variable; `$` is not replaced there."""
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
    """The property list. `Interactive`: macOS slows other processes down, and a measurement with them."""
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
    """The task. Priority 5 is the usual one of programs; tasks have 7 if nothing is said, which is background and slows a measurement.

    The Task Scheduler starts again what it could not start, and nothing that ended: `node.install.restart_loop` does that.
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
    """In quotes, in which cmd.exe leaves everything but % and quotes alone."""
    if '"' in word or "%" in word:
        raise ResourceError(
            f'the Task Scheduler cannot pass an argument with " or %: {word}',
            hint="set it in config.toml",
        )
    return f'"{word}{chr(92) if word.endswith(chr(92)) else ""}"'
