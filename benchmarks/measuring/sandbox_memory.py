"""How much memory a hostile model can make the kernel hold beyond its limits, by each method of `tests.drivers.holding` on each sandbox
tier.

    python benchmarks/measuring/sandbox_memory.py          a table in MiB; a method stops at 96 MiB

Bytes that the kernel accepted, in a real child of each tier: sockets and pipes by the bytes written into them, memory by the bytes touched
and unmapped, the rest by the size of the kernel's objects. Exit code 1: more than 24 MiB on a tier other than `none`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from drivers.sandbox.enter import Tier
from tests.drivers import holding
from tests.drivers.hostile_launches import COUNTED, HostileZygote, findings

TIERS: Final = (Tier.NONE, Tier.PARTIAL, Tier.FULL)


def main() -> int:
    over = 0
    print(f"{'way':20}{''.join(f'{tier:>10}' for tier in TIERS)}   MiB")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        model = Path(folder, "model.json")
        zygotes = [HostileZygote(tier) for tier in TIERS]
        for way in holding.WAYS:
            model.write_text(json.dumps({"neighbour": "", "key": "", "node": 1, "hold": way}))
            held = [findings(zygote, str(model))["held_mib"] for zygote in zygotes]
            over += any(
                amount > COUNTED for amount, tier in zip(held, TIERS, strict=True) if tier is not Tier.NONE
            )
            print(f"{way:20}{''.join(f'{amount:10.1f}' for amount in held)}", flush=True)
        for zygote in zygotes:
            zygote.close()
    return int(over > 0)


if __name__ == "__main__":
    sys.exit(main())
