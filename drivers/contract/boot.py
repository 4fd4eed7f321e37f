"""How a child process starts: its command line and environment."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

BOOT: Final = """
import importlib, importlib.util as u, sys
for name in "drivers", "protocol":
    folder = sys.argv[1] + "/" + name
    spec = u.spec_from_file_location(name, folder + "/__init__.py", submodule_search_locations=[folder])
    sys.modules[name] = module = u.module_from_spec(spec)
    spec.loader.exec_module(module)
importlib.import_module("drivers." + sys.argv[2]).main(sys.argv[3:])
"""
"""Run a module of these packages, whatever other folders of the same names exist; `-P` keeps the working directory off the path."""


PART: Final = "--part"
"""Option with which the stand-alone binary acts as one of these children: it has no interpreter that takes `-c`."""


def boot_command(module: str, *arguments: str) -> list[str]:
    """Command line of a fresh interpreter that runs `drivers.<module>.main(arguments)`."""
    if getattr(sys, "frozen", False):
        return [sys.executable, PART, module, *arguments]
    return [sys.executable, "-P", "-c", BOOT, str(Path(__file__).parents[2]), module, *arguments]


VARIABLE: Final = "SARK_NATIVE"
"""Tells children this folder, because their home directory is a different one."""


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    """This user's folder of compiled loops, in the platform's cache folder."""
    if path := environ.get(VARIABLE):
        return Path(path)
    home = Path(environ.get("HOME") or environ.get("USERPROFILE") or tempfile.gettempdir())
    if sys.platform == "win32":
        base = Path(environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    return base / "sark" / "native"


INHERITED: Final = (
    *("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
    *("SYSTEMROOT", "SYSTEMDRIVE", "HOME", "USERPROFILE", "APPDATA"),
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
)
"""Variables that a runtime may need to find its libraries (HOME: packages installed for one user), and those that an owner or a batch
system uses to restrict it to certain GPUs. A driver gets no others."""


FIXED: Final = {
    "ORT_DISABLE_TELEMETRY": "1",  # onnxruntime ≥ 1.29 otherwise opens an uploader, a thread and a database on import
    "OPENBLAS_NUM_THREADS": "1",  # numpy's pool would start threads in the zygote, which then must not fork
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # NVML counts GPUs in this order
}


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a zygote, without anything that could be a secret or change an import."""
    inherited = {name: environ[name] for name in INHERITED if name in environ}
    return inherited | FIXED | {VARIABLE: str(folder(environ))}
