"""Entry point of the stand-alone binary: the program, or one of the children in which drivers work
(`drivers.contract.boot.boot_command`)."""

from __future__ import annotations

import importlib
import os
import sys

PART = "--part"
LIBRARIES = "LD_LIBRARY_PATH"
ANEW = "PYINSTALLER_RESET_ENVIRONMENT"


def as_it_was() -> None:
    """Restore the variable that led the loader to our libraries: the loader has read it, and the system's programs that we start, such as
    its C compiler, need their own libraries. Another process of this binary starts from scratch."""
    os.environ[ANEW] = "1"
    if sys.platform == "linux":
        before = os.environ.pop(f"{LIBRARIES}_ORIG", "")
        os.environ.pop(LIBRARIES, None)
        if before:
            os.environ[LIBRARIES] = before


if __name__ == "__main__":
    as_it_was()
    if sys.argv[1:2] == [PART]:
        importlib.import_module(f"drivers.{sys.argv[2]}").main(sys.argv[3:])
    else:
        from sark import main

        main()
