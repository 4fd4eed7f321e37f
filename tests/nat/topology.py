"""Sites behind NATs on one machine: network namespaces, veth pairs, nftables.

        wan (a bridge, 10.99.0.0/24)
        │ .1        │ .2        │ .101            │ .102
      gate-1     gate-2       router a          router b       … masquerade; unsolicited inbound packets are dropped
                                │ 10.99.101.0/24  │
                              host, host        host

As with home routers, an outgoing port keeps its number where possible, so that two hosts that dial at the same time meet (hole punching).
Behind a `restless` router each connection leaves by a new port that nobody can predict, as with many mobile providers. Needs root, iproute2
and nftables: `missing()` reports what is not there. Everything is in its own namespaces. A separate process removes them when this one is
done or gone, killed or not. Their names contain the pid of their creator: if the removing process is killed as well, the leftovers are
removed when the next sites are created.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

WAN = "10.99.0"
BRIDGE = "lan0"
NAMES = "sark-{pid}-{number}-"
NAME = re.compile(r"sark-(\d+)-\d+-")
NAT = """
table ip nat {
  chain out { type nat hook postrouting priority 100; oifname "wan" masquerade; }
}
"""
RESTLESS = NAT.replace("masquerade;", "masquerade random;")
GUARD = """
table ip guard {
  chain through {
    type filter hook forward priority 0; policy drop;
    ct state established,related accept
    iifname "lan0" accept
  }
  chain here {
    type filter hook input priority 0; policy drop;
    ct state established,related accept
    iifname { "lo", "lan0" } accept
    ip protocol icmp accept
  }
}
"""
SILENT = """
table ip cut {
  chain heard { type filter hook input priority -10; iifname "wan" drop; }
  chain said { type filter hook output priority -10; oifname "wan" drop; }
}
"""
TAKE_AWAY = """
trap '' INT TERM HUP
cat > /dev/null
for name in "$@"; do
  for pid in $(ip netns pids "$name" 2> /dev/null); do kill -9 "$pid" 2> /dev/null; done
  ip netns del "$name" 2> /dev/null
done
true
"""
"""Starts removing when its standard input ends."""
_COUNT = itertools.count()


def missing() -> str:
    """What this machine lacks to have sites; empty: nothing."""
    if os.name != "posix" or os.geteuid() != 0:
        return "namespaces need root"
    for program in ("ip", "nft"):
        if shutil.which(program) is None:
            return f"there is no {program} here"
    try:
        with sites(("here",), {"there": ("inside",)}, restless=("there",)):
            return ""
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip() or 'failed'}"


def sweep() -> None:
    """Remove the namespaces of earlier processes that no longer exist, and the processes that still live there."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    names = [line.split()[0] for line in listed.splitlines() if line]
    left = [name for name in names if (maker := NAME.match(name)) and not Path(f"/proc/{maker[1]}").exists()]
    if left:
        subprocess.run(["sh", "-c", TAKE_AWAY, "sh", *left], stdin=subprocess.DEVNULL, check=True)


@dataclass
class Sites:
    """All sites together. `public`: hosts directly on the wide-area network; `sites`: the hosts behind each router."""

    public: Sequence[str]
    sites: Mapping[str, Sequence[str]]
    restless: Collection[str] = ()
    """Sites whose routers keep no ports."""
    tag: str = field(default_factory=lambda: NAMES.format(pid=os.getpid(), number=next(_COUNT)))
    addresses: dict[str, str] = field(default_factory=dict)
    """Host → its own address. Behind a router nobody outside can use it."""
    _keeper: subprocess.Popen[bytes] | None = None
    """Removes everything when its standard input ends."""

    def inside(self, host: str) -> tuple[str, ...]:
        """Words to put before a command so that it runs on that host."""
        return ("ip", "netns", "exec", self._name(host))

    def cut(self, host: str) -> None:
        """Cut a public host off: it hears and says nothing, and nobody is notified."""
        self._nft(host, SILENT)

    def mend(self, host: str) -> None:
        """Reconnect the host."""
        _run("ip", "netns", "exec", self._name(host), "nft", "delete", "table", "ip", "cut")

    def _name(self, host: str) -> str:
        return f"{self.tag}{host}"

    def _nft(self, host: str, rules: str) -> None:
        _run(*self.inside(host), "nft", "-f", "-", given=rules)

    def _add(self, host: str) -> None:
        _run("ip", "netns", "add", self._name(host))
        self._ip(host, "link", "set", "lo", "up")

    def _ip(self, host: str, *words: str) -> None:
        _run("ip", "-n", self._name(host), *words)

    def _wire(self, host: str, port: str, address: str, bridge: str) -> None:
        """Connect `host`, where the cable's end is called `port`, to the bridge of another namespace."""
        end = f"to{next(_COUNT)}"
        self._ip(bridge, "link", "add", end, "type", "veth", "peer", "name", port, "netns", self._name(host))
        self._ip(bridge, "link", "set", "dev", end, "master", BRIDGE, "up")
        self._ip(host, "addr", "add", f"{address}/24", "dev", port)
        self._ip(host, "link", "set", "dev", port, "up")

    def _bridge(self, host: str) -> None:
        self._ip(host, "link", "add", "name", BRIDGE, "type", "bridge")
        self._ip(host, "link", "set", "dev", BRIDGE, "up")

    def make(self) -> None:
        """Create all namespaces and cables."""
        inside = [host for hosts in self.sites.values() for host in hosts]
        names = [*self.public, *inside, *(f"router-{site}" for site in self.sites), "net"]
        self._keeper = subprocess.Popen(
            ["sh", "-c", TAKE_AWAY, "sh", *map(self._name, names)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._add("net")
        self._bridge("net")
        for number, host in enumerate(self.public, 1):
            self._add(host)
            self.addresses[host] = f"{WAN}.{number}"
            self._wire(host, "wan", self.addresses[host], "net")
        for number, (site, hosts) in enumerate(self.sites.items(), 101):
            router = f"router-{site}"
            self._add(router)
            self._wire(router, "wan", f"{WAN}.{number}", "net")
            self._bridge(router)
            self._ip(router, "addr", "add", f"10.99.{number}.1/24", "dev", BRIDGE)
            _run("ip", "netns", "exec", self._name(router), "sysctl", "-qw", "net.ipv4.ip_forward=1")
            self._nft(router, (RESTLESS if site in self.restless else NAT) + GUARD)
            for place, host in enumerate(hosts, 10):
                self._add(host)
                self.addresses[host] = f"10.99.{number}.{place}"
                self._wire(host, "eth", self.addresses[host], router)
                self._ip(host, "route", "add", "default", "via", f"10.99.{number}.1")

    def remove(self) -> None:
        """Remove everything, with the processes that still live there; cables go with their ends."""
        if self._keeper is not None:
            self._keeper.communicate()


@contextmanager
def sites(
    public: Sequence[str], behind: Mapping[str, Sequence[str]], restless: Collection[str] = ()
) -> Iterator[Sites]:
    """Sites that exist as long as the context. Raises `CalledProcessError`, which says what this machine did not allow."""
    sweep()
    made = Sites(public, behind, restless)
    try:
        made.make()
        yield made
    finally:
        made.remove()


def _run(*words: str, given: str = "") -> None:
    done = subprocess.run(words, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, words, done.stdout, done.stderr)
