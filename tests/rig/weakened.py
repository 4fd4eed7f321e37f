"""Shows that attacks can succeed: `python -m tests.rig.weakened [NAME …]`.

For each attack, removes a defence from a copy of the tree and runs the short form of the attack there. The exit code is 1 if an attack is
held off even so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
LEFT_OUT: Final = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", ".*_cache", "node_modules")


@dataclass(frozen=True)
class Weakness:
    """`old`, which occurs once in the file at `path`, is replaced by `new`."""

    path: str
    old: str
    new: str


WEAKNESSES: Final[dict[str, tuple[Weakness, ...]]] = {
    "fake-workers": (
        Weakness("scheduler/campaign/trust.py", 'TrustScope(trust == "anyone", ', "TrustScope(True, "),
    ),
    "page-bomb": (
        Weakness("swarm/index/server.py", "return self.holder.page_cost_us(message) + closer", "return 0.0"),
        Weakness("swarm/index/server.py", "            await turn(cost_us)\n", ""),
    ),
    "lying-holders": (
        Weakness(
            "swarm/index/query.py", "if answer.cursor != end or end > MOST_OF_SHARD:", "if end < page.limit:"
        ),
    ),
    "store-flood": (
        Weakness(
            "swarm/index/shard_store.py",
            "            attributes = frozenset(attributes_of(advert))\n            self._nodes[",
            "            attributes = frozenset(attributes_of(advert))\n"
            "            if len(self._nodes) >= 20:\n"
            "                oldest = next(iter(self._nodes))\n"
            "                for shard in self._shards.values():\n"
            "                    shard.pop(oldest, None)\n"
            "                del self._nodes[oldest]\n"
            "            self._nodes[",
        ),
    ),
    "forged-adverts": (
        Weakness("swarm/index/shard_store.py", "if not verify(", "if False and not verify("),
        Weakness("swarm/index/shard_store.py", 'why = "" if advert.peer == sender', 'why = "" if True'),
    ),
    "frame-bombs": (
        Weakness("protocol/wire/base.py", "MAX_FRAME: Final = 64 * 1024", "MAX_FRAME: Final = 2**33"),
    ),
    "window-overrun": (
        Weakness(
            "swarm/p2p/yamux.py",
            "if length > stream.recv_window and not _patient(stream).stopped_locally:",
            "if False:",
        ),
        Weakness("swarm/p2p/yamux.py", "if waiting > MAX_BUFFERED:", "if False:"),
        Weakness("swarm/p2p/yamux.py", "if not self.memory.buffer(self, waiting):", "if False:"),
    ),
    "stream-flood": (
        Weakness("swarm/net/limits.py", "MAX_INBOUND: Final = 32", "MAX_INBOUND: Final = 10**6"),
        Weakness("swarm/p2p/yamux.py", "if len(self.streams) >= MAX_STREAMS:", "if False:"),
    ),
    "slow-streams": (
        Weakness("swarm/net/limits.py", "_of_protocol, (peer, protocol)", '_of_protocol, ("", protocol)'),
    ),
    "half-open": (
        Weakness(
            "swarm/p2p/connection_gater.py",
            "        self._make_room(ip)\n",
            "        if self._pending[ip] >= self.limits.pending_per_ip:\n            return None\n",
        ),
    ),
    "dial-flood": (
        Weakness("swarm/p2p/connection_gater.py", "        decrement(self._held, arrival.network)\n", ""),
        Weakness(
            "swarm/p2p/connection_gater.py", "self._held.total() >= limits.all", "self._held.total() >= 200"
        ),
    ),
    "varint-bombs": (
        Weakness(
            "swarm/p2p/hardening.py",
            "MAX_NEGOTIATION_BYTES: Final = 1024",
            "MAX_NEGOTIATION_BYTES: Final = 2**64",
        ),
        Weakness("swarm/p2p/hardening.py", "if shift > 21:", "if False:"),
    ),
    "downgrade": (
        Weakness(
            "swarm/p2p/hardening.py",
            "secure_transports_by_protocol={NOISE",
            'secure_transports_by_protocol={"/tls/1.0.0": PacedNoise(keys, noise_privkey=new_noise_keys().private_key), NOISE',
        ),
        Weakness(
            "swarm/p2p/hardening.py", "    if security != [str(NOISE)] or muxers", "    if False and muxers"
        ),
    ),
    "forged-reservations": (
        Weakness(
            "swarm/net/reservations.py",
            "        held = self._reservations.get(peer)\n        if held is None and len",
            '        peer = f"{peer}{len(self._reservations)}"\n'
            "        held = self._reservations.get(peer)\n        if held is None and len",
        ),
    ),
    "local-user": (Weakness("web/http/middleware.py", "(scheme or not is_own())", "scheme"),),
    "strangers-verbs": (Weakness("node/serve/service.py", "anyone=settings.accept_anyone", "anyone=True"),),
}
"""Attack → defences to remove."""


def weaken(root: Path, weaknesses: tuple[Weakness, ...]) -> None:
    for each in weaknesses:
        path = root / each.path
        text = path.read_text("utf-8")
        if text.count(each.old) != 1:
            raise SystemExit(
                f"{each.path} has {text.count(each.old)} times what stands in WEAKNESSES: {each.old!r}"
            )
        path.write_text(text.replace(each.old, each.new), "utf-8")


def run(name: str, folder: Path) -> str:
    """Run the attack in a weakened copy of the tree. Returns its result word and failures."""
    tree = folder / name
    shutil.copytree(ROOT, tree, ignore=LEFT_OUT, symlinks=True)
    weaken(tree, WEAKNESSES[name])
    out = tree / "rig.json"
    subprocess.run(
        [sys.executable, "-m", "tests.rig", "--short", "--tries", "1", "--out", str(out), "--only", name],
        cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)}, capture_output=True, check=False,
    )  # fmt: skip
    (result,) = json.loads(out.read_text("utf-8"))["attacks"]
    return f"{result['result']}: {'; '.join(result['failures'][:3])} {json.dumps(result['facts'])}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.rig.weakened", description="Attacks on weakened trees."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="these attacks alone")
    names = parser.parse_args().names or list(WEAKNESSES)
    held = []
    with tempfile.TemporaryDirectory(prefix="sark-weak-") as folder:
        for name in names:
            words = run(name, Path(folder))
            print(f"{name}: {words}", flush=True)
            held += [name] if words.startswith("held") else []
    print(
        f"{len(names) - len(held)} of {len(names)} attacks see their weakness" + f"; not {held}" * bool(held)
    )
    return 1 if held else 0


if __name__ == "__main__":
    sys.exit(main())
