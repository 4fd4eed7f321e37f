"""A peer of rust-libp2p that runs commands. Its options are JSON in the first argument. Each line of standard input is a JSON array,
[method, *arguments], and gets one line on standard error that begins with ANSWER. Its log is standard output.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from lattica_python_core import LatticaSDK  # type: ignore[import-not-found]

PEER_INFO = ("agent_version", "protocols")


class Echo:
    """The methods that others may call."""

    _rpc_methods = ("echo",)

    def _handle_echo(self, data: bytes) -> bytes:
        return bytes(data)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        places = {key: str(Path(name, key)) for key in ("key_path", "storage_path", "dht_db_path")}
        loopback = {"listen_addrs": ["/ip4/127.0.0.1/tcp/0"], "with_mdns": False, "with_upnp": False}
        peer = LatticaSDK({**loopback, **places, **json.loads(sys.argv[1])})
        peer.register_service(Echo())
        answer(peer.peer_id())
        for line in sys.stdin:
            method, *arguments = json.loads(line)
            answer(ask(peer, method, arguments))


def ask(peer: Any, method: str, arguments: list[str]) -> object:
    if method != "get_peer_info":
        return getattr(peer, method)(*arguments)
    info = peer.get_peer_info(*arguments)
    if info is None or info.agent_version is None:
        return None
    return {field: getattr(info, field) for field in PEER_INFO}


def answer(value: object) -> None:
    sys.stderr.write(f"ANSWER {json.dumps(value)}\n")


main()
