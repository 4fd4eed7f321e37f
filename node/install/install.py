"""Installs the services that `service_files.py` describes: writes the files, has the system start them, and says what was done."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from node.install.service_files import (
    InstallStep,
    Service,
    ServiceManager,
    ServiceRole,
    Setting,
    service_for,
)
from protocol.errors import ResourceError
from swarm.base.durable import unusable, write_atomically
from swarm.base.home import Home
from swarm.base.locks import lock_folder
from swarm.base.process import own_command

STEP_S: Final = 60.0
NO_PROGRAM: Final = 127

Run = Callable[[Sequence[str]], tuple[int, str]]
"""Runs a command to its end. Returns its exit code and its message. 127: there is no such program."""
Say = Callable[[str], object]


def run_command(command: Sequence[str]) -> tuple[int, str]:
    """The real `Run`. Blocking, a minute at most."""
    try:
        done = subprocess.run(
            list(command), capture_output=True, text=True, errors="replace", timeout=STEP_S, check=False
        )
    except FileNotFoundError:
        return NO_PROGRAM, "this program is not installed here"
    except subprocess.TimeoutExpired:
        return 124, f"still running after {STEP_S:g} s"
    except OSError as exc:
        return 126, exc.strerror or str(exc)
    return done.returncode, (done.stderr or done.stdout).strip()


def setting_here(
    home: Home,
    home_flag: Path | None,
    environment: Mapping[str, str],
    *,
    role: ServiceRole = ServiceRole.WORKER,
    platform: str = sys.platform,
    root: bool | None = None,
) -> Setting:
    """The service manager of this system, and the user for whom it starts services."""
    windows = platform == "win32"
    if root is None:
        root = _administrator() if windows else os.geteuid() == 0
    managers = {"win32": ServiceManager.WINDOWS, "darwin": ServiceManager.LAUNCHD}
    folder = Path.home()
    return Setting(
        system=managers.get(platform, ServiceManager.SYSTEMD),
        root=root,
        user=_user_name(environment, windows=windows),
        uid=0 if windows else os.getuid(),
        folder=folder,
        config=Path(environment.get("XDG_CONFIG_HOME") or folder / ".config"),
        data=home.data,
        logs=home.logs,
        role=role,
        home=None if home_flag is None else home_flag.expanduser().absolute(),
        environment=()
        if windows
        else _carried(environment, folder, root=root, own_home=home_flag is not None),
    )


def _carried(
    environment: Mapping[str, str], folder: Path, *, root: bool, own_home: bool
) -> tuple[tuple[str, str], ...]:
    """The variables of this shell that the service needs. `sudo` may leave HOME unchanged, where the system would set root's HOME: the
    service would then have other keys and pools."""
    carried = [("HOME", str(folder))] if root else []
    names = _LIBRARIES if own_home else (*_FOLDERS, *_LIBRARIES)
    return (*carried, *((name, environment[name]) for name in names if environment.get(name)))


_FOLDERS: Final = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")
"""Variables that move the platform's folders."""
_LIBRARIES: Final = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Variables that say where runtimes find their libraries, and so decide which units work."""


def _user_name(environment: Mapping[str, str], *, windows: bool) -> str:
    name = environment.get("USERNAME", "")
    if windows:  # `DOMAIN\name`, the form that tasks need
        return f"{environment['USERDOMAIN']}\\{name}" if environment.get("USERDOMAIN") else name
    if sys.platform == "win32":
        return name
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's made-up user
        return str(os.geteuid())


def _administrator() -> bool:
    if sys.platform == "win32":
        import ctypes

        return bool(ctypes.windll.shell32.IsUserAnAdmin())
    return False


def service_command(home_flag: Path | None, words: Sequence[str]) -> tuple[str, ...]:
    """The command line of `sark-node WORDS…` for this home, with this Python."""
    home = () if home_flag is None else ("--home", str(home_flag.expanduser().absolute()))
    return (*own_command("-X", "utf8"), "--log-level", "info", *home, *words)


def not_carried(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Names of variables that this process has and a service would not get."""
    options = ("SARK_HOME", "SARK_LOG_LEVEL")  # given as options in the command line
    return tuple(sorted(name for name in environment if name.startswith("SARK_") and name not in options))


_AGAIN: Final = {
    ServiceRole.WORKER: "This device joins again after each reboot",
    ServiceRole.SERVER: "This home is served after each reboot, and its open campaigns go on",
}
_NO_MORE: Final = {
    ServiceRole.WORKER: "This device does not join again after a reboot. Its keys, pools and models stay.",
    ServiceRole.SERVER: "This home is not served after a reboot. Its campaigns and results stay.",
}


def works_here(home: Home) -> bool:
    """Whether a worker of this home is running now."""
    try:
        with lock_folder(home.folder("worker")):
            return False
    except ResourceError:
        return True


def install(
    setting: Setting,
    command: Sequence[str],
    run: Run,
    say: Say,
    *,
    busy: Callable[[], bool] = lambda: False,
    pause: Callable[[float], object] = time.sleep,
) -> bool:
    """Write the service file and have the service started, now and after each reboot. Returns False if it is written but not running yet.

    `busy`: whether a worker of this home is running now; `pause`: waits between two tries. Raises `ResourceError` if the file is somebody
    else's or cannot be written.
    """
    service = service_for(setting, command)
    _refuse_others(service)
    in_the_way = not service.path.exists() and busy()
    if service.taken and not service.path.exists() and run(service.taken)[0] == 0:
        raise ResourceError(
            f"a task named {service.name} already exists and was not created for this home",
            hint="rename it, or install for a home of its own: --home FOLDER",
        )
    try:
        service.path.parent.mkdir(parents=True, exist_ok=True)
        setting.logs.mkdir(parents=True, exist_ok=True)
        write_atomically(
            service.path, service.text.encode(service.encoding), mode=0o644 if setting.root else 0o600
        )
    except OSError as exc:
        raise unusable(service.path, exc) from None
    say(f"written: {service.path}")
    done = _take(service.enable, run, say, pause)
    say(f"{_AGAIN[setting.role] if done else 'The service is not running yet'} ({setting.system}).")
    for note in service.notes:
        say(f"  {note}")
    if in_the_way:
        say("  A worker runs on this home already: the service starts when that worker is stopped.")
    say(f"  status:    {service.state}")
    say(f"  log:       {service.log}")
    say("  uninstall: the same command with --uninstall")
    return done


def uninstall(setting: Setting, run: Run, say: Say) -> bool:
    """Stop the service and remove its file. Returns False if there was none. Raises `ResourceError` if the file is somebody else's."""
    service = service_for(setting, ())
    if not service.path.exists():
        say(f"nothing is installed for this home: there is no {service.path}")
        return False
    _refuse_others(service)
    _take(service.disable, run, say)
    try:
        service.path.unlink()
    except OSError as exc:
        raise unusable(service.path, exc) from None
    say(f"removed: {service.path}")
    if setting.system is ServiceManager.SYSTEMD:
        _take((service.enable[0],), run, say)
    say(_NO_MORE[setting.role])
    return True


def _refuse_others(service: Service) -> None:
    try:
        text = service.path.read_text(encoding=service.encoding)
    except (FileNotFoundError, NotADirectoryError):
        return
    except PermissionError as exc:
        raise unusable(service.path, exc) from None
    except (OSError, UnicodeError):
        text = ""
    if service.mark not in text:
        raise ResourceError(
            f"{service.path} already exists and was not written for this home; it was not changed",
            hint="move it away, or install for a home of its own: --home FOLDER",
        )


def _take(
    steps: Sequence[InstallStep], run: Run, say: Say, pause: Callable[[float], object] = time.sleep
) -> bool:
    """Run the steps in order. After the first required step that fails, the rest are only shown."""
    well = True
    for step in steps:
        line = subprocess.list2cmdline(step.command)
        if not well:
            say(f"  then run: {line}")
            continue
        code, shown = run(step.command)
        for _ in range(step.tries - 1):
            if code in (0, NO_PROGRAM):
                break
            pause(1.0)
            code, shown = run(step.command)
        why = shown.splitlines()[0] if shown else f"exit code {code}"
        if code == 0:
            say(f"done: {line}")
            continue
        if step.must:
            well = False
            say(f"failed: {line}: {why}")
            say(f"  by hand: {line}")
        elif step.hint:
            say(f"not done: {line}: {why}")
        if step.hint:
            say(f"  {step.hint}")
    return well
