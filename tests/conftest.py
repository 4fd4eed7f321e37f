"""For all tests: nobody is looked for on the LAN of the machine they run on, nor told of them there."""

from __future__ import annotations

import os

os.environ["SARK_LAN"] = "false"
