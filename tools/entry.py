"""What the stand-alone binary runs: the program, or one of the children in which drivers work (`drivers.process.boot_command`)."""

from __future__ import annotations

import importlib
import sys

PART = "--part"

if __name__ == "__main__":
    if sys.argv[1:2] == [PART]:
        importlib.import_module(f"drivers.{sys.argv[2]}").main(sys.argv[3:])
    else:
        from sark import main

        main()
